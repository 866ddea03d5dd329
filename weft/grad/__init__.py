"""Gradients: one rule per primitive, and the reverse traversal that applies them.

A gradient is a graph like any other, so gradients of gradients need nothing more. This package knows nodes and their
primitives; it must not know tensors, devices or kernels.
"""
