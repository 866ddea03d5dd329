"""`functional_call` under the name of PyTorch's `torch.nn.utils.stateless`."""

from __future__ import annotations

from typing import Any


def functional_call(module: Any, *args: Any, **kwargs: Any) -> Any:
    """See `weft.func.functional_call`."""
    from weft.func import functional_call as call

    return call(module, *args, **kwargs)
