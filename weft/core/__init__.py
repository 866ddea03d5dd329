"""Tensors as users see them: `Tensor`, its storage cell, creation, views, indexing, printing and exchange of memory.

`lift` turns an operation on nodes into one on tensors, and `realize` passes the nodes that need values to the compiler.
Nothing here knows how a value is computed, which gradients exist or what a layer is: operations are in `weft.ops` and
`weft.functional`, gradients in `weft.autograd`. Modules are imported by name; this file loads none of them.
"""
