"""Inspection: what a compiled program contains, and where in the user's code it came from.

Reports and explanations read plans and regions and record the origins of nodes. Nothing here computes or
rewrites: recording origins leaves the plan as it is.
"""
