"""Lowering: regions become nests of loops over kernel expressions, nests become kernels, and kernels launches.

The passes are `lower`, `schedule`, `emit` and `batch_launches`.

This package maps nodes to expressions and index maps to addresses, shares equal kernels, and batches small launches. It
must not decide what is fused, which comes from `fusion`, nor how loops are scheduled, which is in `weft.kernels`.
"""
