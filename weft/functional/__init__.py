"""Operations defined on tensors, not nodes: linear algebra, attention, loops, results whose shape depends on values.

They read values on the host, draw random numbers, define gradients of their own, or call other such operations. Most
are registered with `@operation(..., of_tensors=True)`, from which `weft.names` makes public names. What can be written
on nodes alone belongs to `weft.ops`. Nothing here knows a layer, an optimizer or a backend.
"""
