"""Kernels that users write in Python: tracing a function over proxies, and running the same function in NumPy.

It ends in a `Definition`, which the compiler's template for custom kernels consumes. Nothing here knows tensors or
plans.
"""
