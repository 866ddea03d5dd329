"""Kernels as C-like source text for GPUs: statements and indices (`module`), single operations (`operations`).

What differs between languages is a table of `render.dialects`. Nothing here chooses an algorithm or an order of
additions, and nothing knows a device.
"""
