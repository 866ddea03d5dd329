"""Mixed precision under PyTorch's names (`torch.amp`): autocast, loss scaling, and Functions that say how they cast."""

from __future__ import annotations

from weft.contents import load_lazily as _load_lazily

__getattr__, __dir__, __all__ = _load_lazily(
    __name__,
    {
        "weft.autocast": ("autocast", "is_autocast_available"),
        "grad_scaler": ("GradScaler",),
        "functions": ("custom_bwd", "custom_fwd"),
    },
)
