"""Backends: what runs plans on hardware. `registry` names them; each provides devices, memory and executables as
`weft.plan.protocols` declares. Backends know plans, kernels and their renderers, but neither the compiler's passes nor
tensors.
"""
