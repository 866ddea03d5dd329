"""Passes over the graph of a program, before it is fused.

Each takes a program and returns a new one with the same meaning: simpler, with operations expanded, or in the forms
that fusion and lowering accept. What fixes the order of additions is decided here, by shapes alone. Passes must not
schedule or render kernels; they consult a device only through its features, limits and libraries.
"""
