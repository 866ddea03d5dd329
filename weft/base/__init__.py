"""What every other package may use: dtypes, errors, switches, counters, locks, files of the cache, nested structures.

Nothing here imports another package of Weft, and nothing knows what a graph, a tensor, a kernel or a device is. Modules
are imported by name; this file loads none of them.
"""
