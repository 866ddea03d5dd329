"""Convolutions of random geometry against torch: values, gradients of two orders, and what they are fused with.

`WEFT_FUZZ=1000 pytest tests/backend/test_conv_geometry.py` draws so many others.
"""

import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as TF
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import weft
import weft.nn.functional as F
from tests.backend.compiling import kernels_made, numbers, parameter

torch.set_num_threads(1)
FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))


def examples(count):
    return settings(
        max_examples=FUZZ or count, derandomize=not FUZZ, deadline=None, print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One convolution: the function's name, the shapes of input and weight, and the keyword arguments."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    bias: int | None
    how: dict
    dtype: str

    def arrays(self, seed=0):
        rng = np.random.default_rng(seed)
        shapes = [self.x, self.w] + ([(self.bias,)] if self.bias else [])
        return [rng.uniform(-1.0, 1.0, shape).astype(self.dtype) for shape in shapes]

    def weft(self, *tensors):
        return getattr(F, self.name)(*tensors, **self.how)

    def torch(self, *tensors):
        return getattr(TF, self.name)(*tensors, **self.how)


@st.composite
def cases(draw, dtypes=("float32", "float64"), batches=(0, 1, 2, 17)):
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    transposed = draw(st.booleans())

    def each(options):
        return tuple([draw(st.sampled_from(options)) for _ in range(rank)])

    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    inside = groups * draw(st.sampled_from([1, 1, 2, 3, 5, 16]))
    outside = groups * draw(st.sampled_from([1, 1, 2, 3, 8, 17, 32, 33]))
    kernel, stride, dilation = each([1, 2, 3, 4]), each([1, 1, 2, 3]), each([1, 1, 2, 3])
    if draw(st.integers(0, 3)) == 0:  # two pixels are computed together
        groups, inside, outside = 1, draw(st.sampled_from([16, 20])), draw(st.sampled_from([16, 17, 33, 40]))
        kernel, stride, dilation = (*kernel[:-1], 3), (*stride[:-1], 1), (*dilation[:-1], 1)
    padding = each([0, 1, 2, 3])
    extra = each([0, 1, 2])
    if transposed:
        extra = tuple([min(e, max(s, d) - 1) for e, s, d in zip(extra, stride, dilation, strict=True)])
        least = [
            max(1, -(-(2 * p - d * (k - 1) - e) // s) + 1)
            for k, s, d, p, e in zip(kernel, stride, dilation, padding, extra, strict=True)
        ]
    else:
        least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    space = tuple([low + draw(st.sampled_from([0, 1, 2, 3, 6])) for low in least])
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        how["output_padding"] = extra
    w = (inside, outside // groups, *kernel) if transposed else (outside, inside // groups, *kernel)
    batch = () if draw(st.integers(0, 9)) == 0 else (draw(st.sampled_from(batches)),)
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    bias = outside if draw(st.booleans()) else None
    return Case(name, (*batch, inside, *space), w, bias, how, draw(st.sampled_from(dtypes)))


def near(actual, expected, what):
    expected = expected.detach().numpy()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    tolerance = 2e-5 if actual.dtype == np.float32 else 1e-11
    scale = max(np.abs(expected).max(initial=0.0), 1.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale, err_msg=str(what))


def by_torch(case, arrays):
    """The value, its gradients, and the gradients of a function of these, in every argument."""
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    y = case.torch(*tensors)
    first = torch.autograd.grad((y * y).sum(), tensors, create_graph=True)
    again = torch.autograd.grad(sum((g * g).sum() for g in first), tensors, allow_unused=True, materialize_grads=True)
    return [y, *first, *again]


def by_weft(case, arrays):
    every = tuple(range(len(arrays)))
    tensors = [weft.tensor(array) for array in arrays]
    first = weft.grad(lambda *given: case.weft(*given).square().sum(), every)
    again = weft.grad(lambda *given: sum((g * g).sum() for g in first(*given)), every)
    return [case.weft(*tensors), *first(*tensors), *again(*tensors)]


def transposed(x, w, bias, stride, padding, dilation, extra):
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": 1, "output_padding": extra}
    return Case(f"conv_transpose{len(w) - 2}d", x, w, bias, how, "float64")


@example(transposed((1, 1, 1, 1, 2), (1, 1, 1, 1, 1), None, (1, 1, 2), (0, 0, 1), (1, 1, 1), (0, 0, 0)))
@example(transposed((1, 16, 2, 1), (16, 8, 1, 2), 8, (3, 1), (2, 2), (2, 3), (1, 1)))  # all taps behind the input
@examples(40)
@given(cases())
def test_values_and_two_derivatives(case: Case):
    arrays = case.arrays()
    for one, two in zip(by_weft(case, arrays), by_torch(case, arrays), strict=True):
        near(one.numpy(), two, case)


def used(case, *given):
    """A network's use of a convolution: what comes out is an output, and goes through things that fuse with it."""
    y = case.weft(*given)
    z = weft.cat([y.relu(), y * 0.5], y.ndim - len(case.w) + 1)
    return (z * z).sum(), (y, z)


@examples(30)
@given(cases(batches=(1, 3, 17)))
def test_eager_and_compiled_are_the_same_bits(case: Case):
    tensors = [weft.tensor(array) for array in case.arrays()]

    def run(*given):
        (total, values), slopes = weft.value_and_grad(
            lambda *given: used(case, *given), tuple(range(len(given))), has_aux=True
        )(*given)
        return total, *values, *slopes

    alone = [run(*tensors)[number].numpy() for number in range(3 + len(tensors))]
    compiled = weft.compile(run)
    for _ in range(2):
        for one, two in zip(alone, compiled(*tensors), strict=True):
            np.testing.assert_array_equal(two.numpy(), one, err_msg=str(case))


def residual(x, w, v, scale, rows):
    """What networks put behind convolutions: normalisation, a rectifier, a sum with what went in, picked channels."""
    y = F.conv2d(x, w, padding=1)
    y = F.batch_norm(y, None, None, scale, scale, training=True).relu()
    z = F.conv2d(y, v, padding=1) + x
    branches = weft.cat([z.relu(), F.conv2d(x, v, scale, stride=1, padding=1), y], 1)
    return branches, z[:, rows], z.mean((2, 3)), F.max_pool2d(z, 2)


def of(library, x, w, v, scale, rows):
    """`residual` by torch or weft, with the gradients of the sum of its squares."""
    if library is weft:
        tensors = [weft.tensor(array) for array in (x, w, v, scale)]

        def loss(*given):
            found = residual(*given, weft.tensor(rows))
            return sum((one * one).sum() for one in found), found

        (_, found), slopes = weft.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*tensors)
        return [*found, *slopes]
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, w, v, scale)]
    y = TF.batch_norm(TF.conv2d(tensors[0], tensors[1], padding=1), None, None, tensors[3], tensors[3], True).relu()
    z = TF.conv2d(y, tensors[2], padding=1) + tensors[0]
    other = TF.conv2d(tensors[0], tensors[2], tensors[3], padding=1)
    found = [torch.cat([z.relu(), other, y], 1), z[:, rows], z.mean((2, 3)), TF.max_pool2d(z, 2)]
    return [*found, *torch.autograd.grad(sum((one * one).sum() for one in found), tensors)]


@pytest.mark.parametrize("channels", [3, 8, 33])
@pytest.mark.parametrize("batch", [1, 5])
def test_what_stands_behind_a_convolution(channels, batch):
    rng = np.random.default_rng(channels)
    shapes = [(batch, channels, 6, 7), (channels, channels, 3, 3), (channels, channels, 3, 3), (channels,)]
    given = [rng.uniform(-1.0, 1.0, shape) for shape in shapes] + [rng.integers(0, channels, 4)]
    for one, two in zip(of(weft, *given), of(torch, *given), strict=True):
        near(one.numpy(), two, (channels, batch))


def test_a_network_in_training():
    """Weights are updated in place, alone and packed by the optimizer; a short last batch compiles no kernels."""
    steps = {"eager": [], "compiled": []}
    for way, losses in steps.items():
        weft.manual_seed(0)
        params = [parameter(8, 3, 3, 3, seed=1), parameter(8, seed=2), parameter(16, 8, 3, 3, seed=3)]
        params += [parameter(16, 4, 2, 2, seed=4)]
        optimizer = weft.optim.SGD(params, lr=0.01, momentum=0.9)

        def step(x, params=params, optimizer=optimizer):
            optimizer.zero_grad()
            y = F.conv2d(F.conv2d(x, params[0], params[1], padding=1).relu(), params[2], stride=2, padding=1)
            z = F.conv_transpose2d(y, params[3], stride=2)
            loss = (z * z).mean() + y.mean()
            loss.backward()
            optimizer.step()
            return loss

        step = weft.compile(step) if way == "compiled" else step
        for number, batch in enumerate([6, 6, 6, 5, 4, 6]):
            before = kernels_made()
            losses.append(step(weft.tensor(numbers(batch, 3, 8, 8, seed=number))).item())
            if number > 3:  # the first short batch may cut sums differently
                assert kernels_made() == before, (way, batch)
        losses += [param.detach().numpy().tobytes() for param in params]
    assert steps["eager"] == steps["compiled"]


@pytest.mark.parametrize("shape", [(3, 2, 3), (6, 3, 1), (2, 3, 3), (9, 1, 2)])
@pytest.mark.parametrize("channels", [1, 16])
def test_a_convolution_in_another_shape(shape, channels):
    """What is computed from the result may see its pixels in other rows."""
    x, w = numbers(3, 3, 2, 9), numbers(channels, 3, 1, 1, seed=1)
    y = F.conv2d(weft.tensor(x), weft.tensor(w)).permute(0, 2, 3, 1).reshape(3, *shape, channels) / 2.0
    expected = TF.conv2d(torch.tensor(x), torch.tensor(w)).permute(0, 2, 3, 1).reshape(y.shape) / 2.0
    near(y.numpy(), expected, shape)
