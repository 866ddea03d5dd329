"""Replay: every kernel and plan of a fixed set of programs, rendered and compared with what is recorded.

`python -m tests.replay` (`make replay`) compares digests with `recorded.txt`; see `__main__.py` for its options. It
shows which programs a change of the compiler reaches: digests that changed are either meant, and recorded anew, or a
mistake. Nothing is compiled to machine code and nothing runs.
"""
