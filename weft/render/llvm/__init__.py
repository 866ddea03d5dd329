"""Kernels of the CPU as LLVM text. It knows the kernel language only: neither graphs nor plans, and not how the text is
compiled.
"""
