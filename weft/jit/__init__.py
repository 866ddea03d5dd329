"""weft.jit: `weft.compile`. A compiled function is traced for each form of its arguments, guarded by what it read, and
runs as one plan that rewrites the storage of tensors in place. It knows layers, optimizers and training loops only
as objects whose attributes it may have to guard.
"""

from weft.jit.compiled import Compiled

__all__ = ["Compiled"]

Compiled.__module__ = "weft.jit"  # what repr and pickles show
