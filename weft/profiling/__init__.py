"""Where the time of a compiled step goes, by kernel and by layer. `weft.profile` is its one function.

It runs copies of plans and reads their records; no compiled function runs code of this package, and it knows nothing of
training. This file loads no module.
"""
