"""profiling: where the time of a compiled step goes, by kernel and by layer. `weft.profile` is its one function."""
