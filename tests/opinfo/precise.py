"""A sample's results and gradients in float64, by torch: what results in float32 are measured by."""

from __future__ import annotations

from typing import Any

import torch

from tests.opinfo.convert import leaves_of


def in_float64(info: Any, sample: Any, processed: bool) -> dict[str, list[Any]] | None:
    """{'call': results, 'gradient': gradients} of a sample, None where torch has none in float64."""
    from tests.opinfo.check import weighted

    leaves: list[torch.Tensor] = []
    made: dict[int, torch.Tensor] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            if id(value) not in made:
                made[id(value)] = value.detach().double().requires_grad_(value.requires_grad)
                if value.requires_grad:
                    leaves.append(made[id(value)])
            return made[id(value)]
        if type(value) in (list, tuple):
            return type(value)(convert(one) for one in value)
        return torch.float64 if value is torch.float32 else value

    try:
        args = [convert(value) for value in (sample.input, *sample.args)]
        result = info(*args, **{key: convert(value) for key, value in sample.kwargs.items()})
        results = leaves_of(sample.output_process_fn_grad(result) if processed else result)
        roots, weights = weighted(results)
        found = torch.autograd.grad(roots, leaves, weights, allow_unused=True) if roots and leaves else []
    except Exception:  # whatever it is, the comparison in float32 stands
        return None
    gradients = [torch.zeros_like(at) if one is None else one for at, one in zip(leaves, found, strict=bool(found))]
    return {"call": results, "gradient": gradients}
