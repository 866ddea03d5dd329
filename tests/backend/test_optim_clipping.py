"""Clipping of gradients by norms, and penalties, beside torch's."""

import numpy as np
import pytest
import torch

import weft
from tests.backend.test_optim_groups import BOTH_WAYS, arrays, leaves, loss_of

pytestmark = pytest.mark.usefixtures("on_each_device")


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, 0.5, 0.0, float("inf"), -float("inf")])
@pytest.mark.parametrize("max_norm", [0.3, 1e4])
def test_clipping_by_other_norms(order, max_norm):
    ours, theirs = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    loss_of(ours, 0.3).backward()
    loss_of(theirs, 0.3).backward()
    total = weft.optim.get_total_norm([param.grad for param in ours], order)
    expected = torch.nn.utils.get_total_norm([param.grad for param in theirs], order)
    np.testing.assert_allclose(total.item(), expected.item(), rtol=1e-6)
    norm = weft.optim.clip_grad_norm_(ours, max_norm, order, foreach=True)
    torch.nn.utils.clip_grad_norm_(theirs, max_norm, order)
    np.testing.assert_allclose(norm.item(), expected.item(), rtol=1e-6)
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-6)


def test_clipping_with_a_norm_of_ones_own():
    ours, theirs = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    loss_of(ours, 0.3).backward()
    loss_of(theirs, 0.3).backward()
    weft.optim.clip_grads_with_norm_(ours, 1.0, weft.tensor(4.0, dtype=weft.float64))
    torch.nn.utils.clip_grads_with_norm_(theirs, 1.0, torch.tensor(4.0, dtype=torch.float64))
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-12)


@BOTH_WAYS
def test_penalties(compiled):
    ours, theirs = leaves(), [torch.tensor(array, requires_grad=True) for array in arrays()]
    with weft.no_grad():
        ours[2].zero_()
    theirs[2].data.zero_()

    def penalty():
        for param in ours:
            param.grad = None
        loss = weft.optim.l1_penalty(ours, 0.3) + weft.optim.l2_penalty(ours, 0.7)
        loss = loss + weft.optim.elastic_penalty(ours, 0.1, 0.2)
        loss.backward()
        return loss

    loss = (weft.compile(penalty) if compiled else penalty)()
    expected = sum([0.4 * param.abs().sum() + 0.45 * (param * param).sum() for param in theirs])
    expected.backward()
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-12)
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-12)
    assert weft.optim.l1_penalty([], 0.1).item() == 0.0
