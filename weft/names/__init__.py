"""Public names, made from the table of operations: functions, methods of `Tensor`, in-place variants, paths in pickles.

An operation says once where it appears (`weft.ops.registry`); the files here only read that. They know signatures and
paths and nothing of what an operation computes.
"""
