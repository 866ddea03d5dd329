"""Tensors of two devices in one operation are an error for every operation: a kernel would follow an address that means
something else on its device."""

from __future__ import annotations

import pytest

import weft
import weft.nn as nn
from tests.records import RECORDS, Inputs, flat
from tests.records.record import tensors_of

pytestmark = pytest.mark.unit

# Operations that read the shape of an argument only, or its values on the host.
READ_ELSEWHERE = {
    "atleast_1d", "broadcast_tensors", "ctc_loss", "ctc_loss_none", "expand_as", "masked_select",
    "multi_head_attention_causal", "narrow_by_tensor", "repeat_interleave", "repeat_interleave_known_size", "view_as",
}  # fmt: skip
SEVERAL = [record for record in RECORDS if any(len(tensors_of(sample)) > 1 for sample in record.samples)]


def test_many_operations_take_several_tensors():
    assert len(SEVERAL) > 300
    assert {record.name for record in SEVERAL} >= READ_ELSEWHERE


@pytest.mark.parametrize("record", [one for one in SEVERAL if one.name not in READ_ELSEWHERE], ids=lambda one: one.name)
def test_tensors_on_two_devices_are_refused(record):
    sample = next(sample for sample in record.samples if len(tensors_of(sample)) > 1)
    dtype = "float32" if "float32" in record.dtypes else record.dtypes[0]
    for moved in (0, len(tensors_of(sample)) - 1):
        inputs = Inputs(sample, dtype)
        tensors = list(inputs.weft_tensors)
        tensors[moved] = tensors[moved].to("reference")
        with pytest.raises(weft.DeviceError, match=r"given tensors on (cpu and reference|reference and cpu)"):
            for result in flat(record.fn(*inputs.arguments(tensors), **sample.kwargs)):
                result.numpy()


@pytest.mark.parametrize("loss", [nn.NLLLoss, nn.CrossEntropyLoss, nn.MultiMarginLoss])
def test_weights_of_a_loss_on_another_device(loss):
    criterion = loss(weight=weft.ones(4, device="reference"))
    with pytest.raises(weft.DeviceError, match="expected all on one device"):
        criterion(weft.ones(3, 4), weft.tensor([0, 1, 2])).item()
    assert criterion.to("cpu")(weft.ones(3, 4), weft.tensor([0, 1, 2])).isfinite().item()


def test_copy_takes_a_tensor_of_any_device():
    """As in torch: what is copied is named, and so is where to."""
    target, source = weft.zeros(2, 3), weft.tensor([1.0, 2.0, 3.0], device="reference", requires_grad=True)
    with weft.no_grad():
        target.copy_(source)
    assert target.device.name == "cpu" and target.tolist() == [[1.0, 2.0, 3.0]] * 2
    weights = weft.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    ((target * 0 + 1).copy_(source) * weights).sum().backward()
    assert source.grad.device.name == "reference" and source.grad.tolist() == [5.0, 7.0, 9.0]
