"""Fusion: which nodes are computed together, in one kernel.

`roots` decides which values are written to memory, `fuse` groups the nodes between them into regions, and `merge` joins
regions that share a domain. A region describes what one kernel computes; this package must not know schedules, kernel
text or memory.
"""
