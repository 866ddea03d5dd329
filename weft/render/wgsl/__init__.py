"""Kernels as WGSL text, WebGPU's language: statements and memory (`module`, `memory`), single operations
(`operations`), 64-bit integers by pairs of words (`int64_pairs`). Nothing here knows a device or a runtime.
"""
