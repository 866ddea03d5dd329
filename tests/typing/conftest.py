"""The programs here are for type checkers; `tests/unit/test_typing.py` reads and runs them."""

collect_ignore_glob = ["*.py"]
