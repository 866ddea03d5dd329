"""The CPU backend: machine code by LLVM, matrix products by the BLAS, threads that share a plan's tasks. It knows
nothing of GPUs.
"""
