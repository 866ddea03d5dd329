"""Kernels: the language they are written in, and the schedules that turn loop nests and problems into kernels.

`ir` is the language, `math` its numerical functions, `cpu` and `gpu` the schedules, `custom` kernels that users write;
`numerics` has the rules over shapes that fix every order of additions. Nothing here knows the graph, plans, backends or
the text of a kernel.
"""
