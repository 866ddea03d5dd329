"""Operations: what users call, as functions of nodes, each composed of primitives and of other operations.

Each is entered into the table of operations (`registry`), from which `weft.names` makes functions and methods of
tensors. Operations check what the user gave; they must not know tensors, gradients, devices or kernels.
"""
