"""`weft.cuda.amp`: mixed precision for NVIDIA GPUs under the names that older PyTorch programs import."""

from __future__ import annotations

from typing import Any

from weft.amp import GradScaler as _GradScaler
from weft.amp import autocast as _autocast
from weft.amp import custom_bwd, custom_fwd
from weft.base.dtypes import DTypeLike, float16

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(_autocast):
    """`weft.autocast("cuda", ...)`."""

    def __init__(self, enabled: bool = True, dtype: DTypeLike = float16, cache_enabled: bool = True):
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(_GradScaler):
    """`weft.amp.GradScaler("cuda", ...)`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__("cuda", *args, **kwargs)
