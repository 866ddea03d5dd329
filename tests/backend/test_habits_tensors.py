"""Small things that PyTorch's users type: texts, `in`, `for`, strides, `to`, tensors like others, copies."""

import copy
import re

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")
M = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def outcome(library, text, **names):
    """What an expression gives, or the kind of error."""
    try:
        value = eval(text, {"m": library, "np": np, "copy": copy, **names})
    except Exception as error:
        return next(kind for kind in (TypeError, ValueError, IndexError, RuntimeError) if isinstance(error, kind))
    if isinstance(value, (torch.Tensor, weft.Tensor)):
        return str(value.dtype).split(".")[1], value.detach().cpu().tolist()
    return re.sub("torch|weft", "m", repr(value)) if isinstance(value, (torch.dtype, weft.dtype)) else value


def both(text):
    found = [outcome(library, text, x=library.tensor(M), s=library.tensor(1.23456)) for library in (weft, torch)]
    assert found[0] == found[1], text
    return found[0]


# ---- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "f'{s:.3f}'", "f'{s}'", "f'{s:>40}'", "f'{s:e}'", "'%.2f' % s", "'{:.1f}'.format(s)", "f'{m.tensor(3):05d}'",
        "f'{m.tensor(True)}'", "f'{m.tensor(2.5, requires_grad=True):.2f}'",
        "f'{m.tensor(1.5, dtype=m.bfloat16):.3f}'",
        "f'{x}'", "f'{x!r}'", "f'{x.sum():.0f}'", "f'{x[0, 1]:.1f}'", "f'{m.tensor([2.5])}'", "format(x)",
        "f'{x:.2f}'", "f'{m.tensor([3.0]):.2f}'", "f'{s:nonsense}'", "str(m.tensor(3))", "repr(s)",
    ],
)  # fmt: skip
def test_format(text):
    both(text)


def test_format_inside_compile():
    texts = []

    @weft.compile
    def step(x):
        texts.append(f"{x.sum()}")
        return x * 2

    step(weft.ones(2))
    assert texts == ["tensor(<traced>, shape=(), dtype=weft.float32)"]
    with pytest.raises(weft.GraphError, match="values are not known yet"):
        weft.compile(lambda x: (x, f"{x.sum():.2f}")[0])(weft.ones(2))


def test_tables_for_notebooks():
    shown = weft.tensor([[1.0, 2.5], [3.0, -4.0]], requires_grad=True)._repr_html_()
    assert re.findall(r"<td[^>]*>([^<]*)</td>", shown) == ["1.0000", "2.5000", "3.0000", "-4.0000"]
    assert shown.count("<tr>") == 2 and "float32[2, 2]" in shown and "requires_grad=True" in shown
    assert weft.arange(16)._repr_html_().count("<td") == 16
    assert "1.5000" in weft.tensor([1.5], dtype=weft.bfloat16)._repr_html_()
    for other in (weft.tensor(1.0), weft.ones(0), weft.ones(17), weft.ones(25, 1), weft.ones(2, 2, 2)):
        assert other._repr_html_() is None
    traced = []
    weft.compile(lambda x: (traced.append(x._repr_html_()), x * 2)[1])(weft.ones(2))
    assert traced == [None]


# ---- in and for -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "3.0 in x", "7 in x", "True in x", "m.tensor(2.0) in x", "x[0] in x", "x in x", "float('nan') in x",
        "np.float32(3) in x", "1 in m.tensor([])", "2 in m.tensor(2)", "1000 in m.tensor([1], dtype=m.int8)",
        "'a' in x", "None in x", "[0.0] in x", "np.ones(3) in x", "1j in x",
        "[v.tolist() for v in x]", "[v.item() for v in x[0]]", "list(s)", "len(s)", "list(m.zeros(0, 3))", "len(x)",
        "[a.tolist() for a, b in zip(x, x)]", "sum(x).tolist()", "max(x[0]).item()", "sorted(x[1])[0].item()",
        "dict(enumerate(x[0].tolist()))", "s in [1.0]",
    ],
)  # fmt: skip
def test_in_and_for(text):
    if "'a'" in text or "None in" in text or "[0.0] in" in text or "np.ones" in text:
        with pytest.raises(TypeError, match=r"in: given a \w+; expected a number or a tensor"):
            eval(text, {"x": weft.tensor(M), "np": np})
        return
    both(text)


def test_gradients_of_what_is_looped_over():
    x = weft.tensor(M, requires_grad=True)
    total = 0
    for number, row in enumerate(x):
        total = total + (row * (number + 1)).sum()
    total.backward()
    assert x.grad.tolist() == [[1.0] * 3, [2.0] * 3]


# ---- memory ---------------------------------------------------------------------------------------------------------

VIEWS = [
    "x", "x.t()", "x[:, 1:]", "x[1]", "x[:, 0]", "x[1, 2]", "x.expand(4, 2, 3)", "x.reshape(3, 2)",
    "x.t().reshape(6)",
    "x.t().contiguous()", "x.t().contiguous().t()", "x.view(6)[1::2]", "x.diagonal()", "x.diagonal(1)",
    "x.diagonal(-1)",
    "x.unsqueeze(1)", "x.t()[1:]", "x[1:].t()", "x.unfold(1, 2, 1)", "x.chunk(3, 1)[2]", "x.unbind(1)[1]",
    "m.zeros(0, 3)",
    "m.tensor(1.0)", "x[None]", "x[..., 2]", "x.squeeze()", "x.narrow(1, 1, 2)", "x.permute(1, 0)[2]", "x.detach()",
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_strides(view):
    for text in (".stride()", ".storage_offset()", ".is_contiguous()", ".element_size()", ".nbytes", ".itemsize",
                 ".nelement()", ".ndimension()", ".contiguous().is_contiguous()"):  # fmt: skip
        both(view + text)
    both(f"{view}.stride(0)")


def test_strides_of_views_that_numbers_do_not_tell():
    x = weft.tensor(M)
    view = x[weft.tensor(1)]
    assert view.stride() == (1,)
    with pytest.raises(weft.GraphError, match="a view by an index tensor"):
        view.storage_offset()
    with pytest.raises(IndexError, match="axis 5"):
        x.stride(5)


# ---- shapes, dtypes and devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x.shape == (2, 3)", "(2, 3) == x.shape", "x.shape.numel()", "x.shape[1:].numel()",
        "(x.shape + (4,)).numel()",
        "((4,) + x.shape).numel()", "(x.shape * 2).numel()", "hash(x.shape) == hash((2, 3))", "tuple(x.shape)",
        "isinstance(x.shape, m.Size)", "isinstance(x.shape, tuple)", "x.size().numel()", "m.Size([2, 3]) == x.shape",
        "list(x.shape)", "x.shape[-1]", "m.Size([2, 3]).numel()", "m.zeros(x.shape).tolist()",
        "isinstance(x.shape[:1], m.Size)",
        "x.reshape(x.shape[::-1]).tolist()", "x.new_zeros(x.shape + (1,)).tolist()", "(*x.shape, 4)", "m.Size([])",
        "isinstance(x.dtype, m.dtype)", "isinstance(x.device, m.device)", "m.is_tensor(x)", "m.is_tensor(1)",
        "m.is_floating_point(x)", "m.is_floating_point(x.long())", "x.is_floating_point()", "x.long().is_signed()",
        "m.tensor([True]).is_signed()", "x.device == m.device(x.device)", "m.device('cpu').type",
        "m.empty_like(x).shape == x.shape",
    ],
)  # fmt: skip
def test_shapes_and_kinds(text):
    both(text)


@pytest.mark.parametrize(
    "arguments",
    [
        "m.float64", "m.int64", "x.long()", "dtype=m.int8", "m.float64, True", "x.device, m.int32",
        "x.device, m.float64, False, True",
        "dtype=m.float64, device=x.device, non_blocking=True", "x.double(), copy=True", "", "None",
        "device=x.device, copy=True",
        "m.float32, non_blocking=True, copy=False", "x.device, dtype=m.int64", "None, m.int8",
    ],
)  # fmt: skip
def test_to(arguments):
    both(f"x.to({arguments})")
    both(f"x.to({arguments}) is x")


def test_to_with_a_copy_is_apart_and_keeps_gradients():
    x = weft.tensor(M, requires_grad=True)
    y = x.to(weft.float32, copy=True)
    assert y is not x and not y.is_leaf
    (y * 2).sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    z = x.detach().to(copy=True)
    z.add_(1)
    assert x.tolist() == M
    for call in (lambda: x.to(speed=3), lambda: x.to("cpu", weft.int8, True, True, True)):
        with pytest.raises(weft.DTypeError, match="to: given"):
            call()


def test_devices():
    x = weft.ones(2, device="cpu")
    assert x.cpu() is x and not x.is_cuda and x.is_cpu and x.get_device() == -1 and x.device.type == "cpu"
    assert weft.device("cpu") is x.device and weft.device(x.device) is x.device
    assert isinstance(weft.cuda.is_available(), bool) and weft.cuda.device_count() >= weft.cuda.is_available()
    with weft.device("reference") as device:
        assert weft.ones(1).device is device and weft.default_device() is device
        with weft.device("cpu"):
            assert weft.ones(1).device.kind == "cpu"
        assert weft.ones(1).device is device
    weft.synchronize()
    weft.synchronize("cpu")
    weft.cuda.empty_cache()
    weft.cuda.manual_seed_all(3)
    assert weft.initial_seed() == 3
    if weft.cuda.is_available():
        y = x.cuda()
        assert y.is_cuda and y.get_device() == 0 and x.to(0).device is y.device and y.cpu().tolist() == [1.0, 1.0]
        weft.cuda.synchronize()
        assert weft.cuda.get_device_name() and weft.cuda.mem_get_info()[1] > 0 and weft.cuda.is_bf16_supported()
        assert weft.device("cuda", 0) is y.device and 0 <= weft.cuda.current_device() < weft.cuda.device_count()
    else:
        for call in (x.cuda, lambda: x.to(0), lambda: weft.device("cuda", 0), weft.cuda.synchronize):
            with pytest.raises(weft.DeviceError, match="weft doctor"):
                call()


# ---- tensors like others --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x.new_zeros(2)", "x.new_zeros(2, 3)", "x.new_zeros((2, 2), dtype=m.int8)", "x.new_ones([2])",
        "x.new_full((2,), 3)",
        "x.long().new_full((2,), 3.5)", "x.new_tensor([1, 2])", "x.long().new_tensor([1.5, 2])",
        "x.new_empty(2).shape == (2,)",
        "x.new_tensor(2)", "x.new_ones(())", "x.new_zeros(2, requires_grad=True).requires_grad",
        "m.full_like(x.long(), 2.5)",
        "m.zeros_like(x, dtype=m.int8)", "m.ones_like(x, device=x.device)", "m.empty_like(x, dtype=m.int8).dtype",
        "m.full_like(x, 2, dtype=m.int64)", "m.rand_like(x, dtype=m.float64).dtype",
        "m.randn_like(x.long(), dtype=m.float32).dtype",
        "m.randint_like(x, 5).dtype", "m.randint_like(x, 2, 3)",
        "m.randint_like(x, 3, dtype=m.int64).shape == (2, 3)",
        "m.zeros_like(x, requires_grad=True).requires_grad", "m.linspace(0, 1, 3, requires_grad=True).requires_grad",
        "m.arange(3.0, requires_grad=True).requires_grad", "m.eye(2, requires_grad=True).requires_grad",
    ],
)  # fmt: skip
def test_tensors_like_others(text):
    both(text)


def test_random_floats_are_floats():
    for call in (lambda: weft.rand_like(weft.ones(2).long()), lambda: weft.randn(2, dtype=weft.int64)):
        with pytest.raises(weft.DTypeError, match="expected a float dtype"):
            call()


# ---- copies ---------------------------------------------------------------------------------------------------------


def copies(m):
    x = m.tensor([1.0, 2.0])
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    shallow.add_(1)
    x.mul_(2)
    p = m.tensor([1.0, 2.0], requires_grad=True)
    q = copy.copy(p)
    with m.no_grad():
        q.add_(10)
    (q * 3).sum().backward()
    return [one.tolist() for one in (x, shallow, deep, p, q, q.grad)], p.grad, q.requires_grad, q.is_leaf


def test_copies():
    assert copies(weft) == copies(torch)
