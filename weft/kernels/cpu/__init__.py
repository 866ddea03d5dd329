"""CPU schedules: nests, matrix products, convolutions, attention, scans and sorts as kernels of tasks and vector lanes.

What fixes the order of additions depends on shapes alone, never on the number of threads. Nothing here knows the graph
or how kernels are printed.
"""
