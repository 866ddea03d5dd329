"""The list of kernels of the specification: `names` is the table, `page` writes docs/kernels.md of it."""
