"""The graph: nodes, the primitives with their rules, and the spec of a legal graph.

Everything that is computed is a graph of nodes, each a primitive over sources. This package knows what nodes mean, in
NumPy, and how they are made; it must not know operations, gradients, devices or kernels.
"""
