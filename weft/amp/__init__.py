"""Mixed precision under PyTorch's names (`torch.amp`): autocast, loss scaling, and Functions that say how they cast.

Which operation runs in which dtype is decided in `weft.ops.policy`; here are the switches, and the scaler, which works
with any optimizer. Nothing here knows a layer or the compiler. A file is loaded when one of its names is first used.
"""

from __future__ import annotations

from weft.base.lazy_modules import load_lazily as _load_lazily

__getattr__, __dir__, __all__ = _load_lazily(
    __name__,
    {
        "weft.core.autocast": ("autocast", "is_autocast_available"),
        "grad_scaler": ("GradScaler",),
        "functions": ("custom_bwd", "custom_fwd"),
    },
)
