"""The compiler: from a graph of nodes to a plan of kernel launches.

A request becomes a `Program`, and the passes of `pipeline.PASSES` make a plan of it: they rewrite the graph, divide it
into regions with memory, lower these to nests and schedule the nests; `realize` runs the result. The compiler knows
devices only by their features, limits, tuning and libraries (`weft.plan.device`); it must not know tensors, vendors, or
how a backend loads and launches a kernel.
"""
