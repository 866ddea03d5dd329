"""Templates: operations whose kernels are written by hand (products, convolutions, attention, custom kernels).

A template says which memory a node reads and builds its kernel with what is fused behind it. Schedules themselves are
in `weft.kernels`; nothing here runs a kernel.
"""
