"""Every layer under autocast: the dtypes of PyTorch's layers on GPUs, the numbers of those on its CPU, and gradients in
the dtype of the parameters. docs/precision.md lists the layers that have other dtypes on PyTorch's CPU, and why."""

import functools
import logging
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from tests.layers.instances import assert_close, leaves_of, make_layer, state_of, tensors, weighted
from tests.layers.oracles import to_torch
from tests.layers.record import Draw
from tests.layers.records import records
from weft.base import tree

pytestmark = pytest.mark.usefixtures("quick_code")
PAGE = Path(__file__).parents[2] / "docs" / "precision.md"
LAYERS = [pytest.param(record, id=record.id) for record in records()]
# The dtype of autocast and that of the inputs: as they come from the data, or from another layer.
RUNS = (("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32"))
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# Results of a recurrent layer went through a dozen roundings: 10 of them were the largest difference of all layers.
ALLOWED = 12
# Samples of the record are float32, and must have the input's dtype, as in torch.
FIXED_INPUTS = ("FractionalMaxPool2d", "FractionalMaxPool3d")


def float_dtypes(result):
    found = [getattr(leaf, "dtype", None) for leaf in leaves_of(result)]
    names = [str(dtype).rpartition(".")[2] for dtype in found if dtype is not None]
    return [name for name in names if "float" in name]


def with_floats(values, change):
    """Inputs with `change` applied to tensors."""
    leaves, structure = tree.flatten(values)
    return tree.unflatten(structure, [change(one) if isinstance(one, torch.Tensor) else one for one in leaves])


def on_torchs_cpu(make, layer, inputs, training, low, given):
    """What the layer of torch gives under its autocast; None where it refuses."""
    module = make().float().train(training)
    with warnings.catch_warnings(), torch.autocast("cpu", dtype=getattr(torch, low)):
        warnings.simplefilter("ignore")
        state = {key: to_torch(np.asarray(value)) for key, value in state_of(layer).items()}
        module.load_state_dict(state)
        dtype = getattr(torch, given)
        try:
            return module(*with_floats(to_torch(inputs), lambda x: x.to(dtype) if x.is_floating_point() else x))
        except (RuntimeError, ValueError, NotImplementedError):
            return None


def on_torchs_gpu(make, inputs, training, low, given):
    """The dtypes of the results of the layer of torch on a GPU, from tensors without values (`FakeTensorMode`), so that
    no GPU is needed; None where an operation of the layer asks for one."""

    def fake(x):
        dtype = getattr(torch, given) if x.is_floating_point() else x.dtype
        return torch.empty(x.shape, dtype=dtype, device="cuda")

    module, arguments = make().float().train(training), to_torch(inputs)
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level, before = log.level, torch.get_autocast_dtype("cuda")
    log.setLevel(logging.CRITICAL)
    torch.set_autocast_enabled("cuda", True)  # torch.autocast("cuda") switches itself off where there is none
    torch.set_autocast_dtype("cuda", getattr(torch, low))
    try:
        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in module.modules():
                for kind in (part._parameters, part._buffers):
                    for name, value in kind.items():
                        if value is not None:
                            made = torch.empty(value.shape, dtype=value.dtype, device="cuda")
                            kind[name] = torch.nn.Parameter(made, False) if kind is part._parameters else made
            return float_dtypes(module(*with_floats(arguments, fake)))
    except Exception:  # whatever a device that is not there makes of it
        return None
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
        torch.clear_autocast_cache()
        log.setLevel(level)


@functools.cache
def documented():
    """The layers that docs/precision.md lists, with the column that says what they give on torch's CPU."""
    part = PAGE.read_text().partition("### Layers")[2].partition("\n## ")[0]
    return {name for row in part.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row)}


# What torch asks a real GPU for: random draws, statistics of batches, scatters; BCELoss it refuses under autocast.
NEED_GPU = {
    "DepthwiseSeparableConv2d", "GCNConv", "SAGEConv", "GINConv", "EdgeConditionedConv", "GATConv", "GATv2Conv",
    "MessagePassing", "BCELoss", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyInstanceNorm1d",
    "LazyInstanceNorm2d", "LazyInstanceNorm3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm",
    "InstanceNorm2d", "CrossMapLRN2d", "GaussianNLLLoss", "MultiMarginLoss", "GRU", "LSTM", "LSTMCell", "GRUCell",
    "BasicBlock", "Bottleneck", "DenseNetLayer", "DenseBlock", "Transition", "RepVGGBlock", "Unfold",
    "AdaptiveLogSoftmaxWithLoss", "TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerDecoder", "Transformer",
}  # fmt: skip
# Its mode "area" is an average in torch, which has no policy; all modes of ours have one.
OTHER_MODES = ("Upsample-area",)


def run(record, low, given):
    """(layer, result, what torch's CPU gives or None, dtypes on torch's GPU or None)."""
    make = getattr(record.oracle, "torch_module", None)
    layer, inputs = make_layer(record), record.inputs(Draw())
    expected = on_gpu = None
    if make is not None:
        expected = on_torchs_cpu(make, layer, inputs, record.training, low, given)
        on_gpu = on_torchs_gpu(make, inputs, record.training, low, given)
        assert on_gpu is not None or record.name in NEED_GPU
    with weft.autocast("cpu", dtype=low):
        return layer, layer(*tensors(inputs, getattr(weft, given))), expected, on_gpu


@pytest.mark.parametrize("record", LAYERS)
def test_every_layer(record):
    for low, given in RUNS:
        if given != "float32" and record.name in FIXED_INPUTS:
            continue
        layer, result, expected, on_gpu = run(record, low, given)
        found = float_dtypes(result)
        if on_gpu is not None and record.id not in OTHER_MODES:
            assert found == on_gpu, (low, given)
        if expected is not None:
            assert float_dtypes(expected) == found or record.name in documented(), (float_dtypes(expected), found)
            if not record.random:
                wide = with_floats(expected, lambda x: x.detach().float() if x.is_floating_point() else x)
                rtol = ALLOWED * ROUNDING[low]
                assert_close(result, wide, rtol, rtol * 0.1, f"{low} for {given}")
        if low == "bfloat16" and record.differentiable and any(param.requires_grad for param in layer.parameters()):
            total = weighted(result)
            if total.requires_grad:
                total.backward()
        for name, param in layer.named_parameters():
            assert param.grad is None or param.grad.dtype is param.dtype, name


def test_the_page_lists_no_other_layers():
    names = {}
    for record in records():
        names.setdefault(record.name, []).append(record)
    for name in documented():
        runs = (run(record, "bfloat16", given) for record in names[name] for given in ("bfloat16", "float32"))
        assert any(theirs is not None and float_dtypes(theirs) != float_dtypes(ours) for _, ours, theirs, _ in runs), (
            name
        )
