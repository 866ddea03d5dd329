"""Renderers: the normal form of a kernel as text, LLVM IR (`llvm`) or a C-like language (`clike` with `dialects`).

They choose no algorithm and no order of additions, and know neither graphs nor devices, nor how the text is compiled.
"""
