"""Normalisations with all their gradients on a GPU: rows x width x norm x context x dtype, against float64.

The oracle is torch in float64, on the GPU where torch has one, else on the CPU, for fewer rows of the widest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

from tests.unit import norm_sweep
from tests.unit.norm_sweep import EPS, ROWS, WIDTHS, Case

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOST = 1 << 26 if DEVICE == "cuda" else 1 << 22  # elements of one case
NARROW = ("bfloat16", "float16")
ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # the step at 1


def expected(case: Case, given: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """What `norm_sweep.run` should find, from inputs as the case's dtype rounds them."""
    narrow = getattr(torch, case.dtype)
    inputs = {name: torch.from_numpy(array).to(DEVICE) for name, array in given.items()}
    inputs = {name: one if name == "index" else one.to(narrow).double() for name, one in inputs.items()}
    leaves = {name: one for name, one in inputs.items() if name not in ("index", "slope")}
    for leaf in leaves.values():
        leaf.requires_grad_()
    x = inputs["x"]
    if case.context == "embedded":
        # The sum is rounded before it is normalised; the gradient passes that by.
        x = x + TF.embedding(inputs["index"], inputs["table"])
        x = x + (x.detach().to(narrow).double() - x.detach())
    if case.norm == "layer_norm":
        y = TF.layer_norm(x, (case.width,), inputs["weight"], inputs["bias"], EPS)
    else:
        y = TF.rms_norm(x, (case.width,), inputs["weight"], EPS)
    y = x + y if case.context == "embedded" else y
    y.backward(inputs["slope"])
    return {"y": y.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def compare(case: Case) -> None:
    given = norm_sweep.arrays(case)
    found, want = norm_sweep.run(case, given), expected(case, given)
    assert found.keys() == want.keys()
    for name, tensor in found.items():
        ours = torch.tensor(tensor.float().numpy(), device=DEVICE).double()
        assert ours.shape == want[name].shape
        # Sums over rows and over columns: errors grow with the root of their lengths at most, and terms that cancel
        # leave them; in 16 bits each result, and what a gradient is made of, is rounded once.
        length = case.rows if name in ("weight", "bias", "table") else case.width
        scale = float(want[name].abs().max())
        allowed = (8 + length**0.5) * ROUNDING["float32"] * scale + 4 * ROUNDING[case.dtype] * scale
        worst = float((ours - want[name]).abs().max())
        assert worst <= allowed, f"{case} {name}: {worst} is more than {allowed}"


@pytest.mark.parametrize("norm", norm_sweep.NORMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_of_many_shapes(width, norm):
    sweep = [*norm_sweep.cases(ROWS, (width,), ("float32",)), *norm_sweep.cases((7, 8192), (width,), NARROW)]
    for case in sweep:
        if case.norm == norm:
            compare(replace(case, rows=min(case.rows, MOST // width)))


@pytest.mark.parametrize("rows", [1 << 16, 100_003])
@pytest.mark.parametrize("width", [16, 31, 768, 1024])
def test_norms_of_very_many_rows(rows, width):
    for norm in norm_sweep.NORMS:
        compare(Case(rows, width, norm, "alone", "float32"))
