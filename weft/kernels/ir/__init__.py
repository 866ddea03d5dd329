"""The kernel language: expressions, statements, indices and nests, their normal form and rewriting.

Schedules build kernels of it, renderers print its normal form. It knows dtypes and nothing of graphs, devices or the
text of any language.
"""
