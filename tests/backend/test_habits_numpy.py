"""NumPy's functions and einops on tensors: tensors out, with gradients, inside `weft.compile` too."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")
VECTOR, MATRIX, WHOLE = [1.0, 2.0, 3.0], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [1, 2, 3]


def names(make):
    return {"np": np, "x": make(VECTOR, "float32"), "m": make(MATRIX, "float32"), "i": make(WHOLE, "int64")}


def ours(values, dtype):
    return weft.tensor(values, dtype=dtype)


# What Weft computes itself.
RECORDED = [
    "np.sin(x)", "np.add(x, np.ones(3))", "np.add(x, np.ones(3, np.float32))", "np.add(np.ones(3), x)",
    "np.add(x, 1)",
    "np.add(1, x)", "np.float32(2) * x", "np.matmul(m, x)", "np.exp(x)", "np.maximum(x, 2)",
    "np.abs(x)", "np.negative(x)", "np.isnan(x)", "np.logical_not(x)", "np.bitwise_and(i, 1)", "np.invert(i)",
    "np.power(x, 2)", "np.square(x)", "np.rint(x / 2)", "np.mean(x)", "np.mean(m, axis=1)",
    "np.mean(m, 0, keepdims=True)",
    "np.mean(m, axis=0, dtype=np.float64)", "np.mean(i)", "np.sum(x)", "np.sum(m, axis=0)",
    "np.sum(m, 1, keepdims=True)",
    "np.sum(m, axis=(0, 1))", "np.max(m)", "np.min(m, axis=(0, 1))", "np.amax(m, axis=1)", "np.argmax(x)",
    "np.argmin(m, axis=1)", "np.any(x > 1)", "np.all(x > 1)", "np.std(x)", "np.var(m, axis=0, ddof=1)", "np.std(i)",
    "np.prod(x)", "np.cumsum(m)", "np.cumsum(m, 0)", "np.cumsum(m, axis=1)", "np.clip(x, 0, 2)", "np.round(x / 3)",
    "np.reshape(m, (3, 2))", "np.reshape(m, -1)", "np.transpose(m)", "np.transpose(m, (1, 0))", "np.ravel(m)",
    "np.squeeze(m[:, :1])", "np.swapaxes(m, 0, 1)",
]  # fmt: skip
# What NumPy computes from the values: tensors where PyTorch gives them, else arrays.
TENSORS = [
    "np.cbrt(x)", "np.divmod(x, 2)[1]", "np.modf(x)[0]", "np.add.reduce(x)", "np.multiply.outer(x, x)",
    "np.sin(x, dtype=np.float64)", "np.maximum.accumulate(x)", "np.frexp(x)[1]",
]  # fmt: skip
ARRAYS = [
    "np.concatenate([x, x])", "np.stack([x, x])", "np.dot(m, x)", "np.where(x > 1, x, 0)", "np.sort(x)",
    "np.outer(x, x)",
    "np.linalg.norm(x)", "np.add(x, x, out=np.zeros(3, np.float32))", "np.max(m, initial=10.0)",
    "np.einsum('i,i', x, x)",
]  # fmt: skip


@pytest.mark.parametrize("text", [*RECORDED, *TENSORS, *ARRAYS])
def test_functions_of_numpy(text):
    expected = np.asarray(eval(text, names(np.array)))
    found = eval(text, names(ours))
    assert isinstance(found, weft.Tensor) is (text not in ARRAYS)
    np.testing.assert_allclose(np.asarray(found).astype(float), expected.astype(float), rtol=1e-6, atol=1e-6)
    assert np.asarray(found).dtype == expected.dtype and np.shape(found) == expected.shape


@pytest.mark.parametrize("text", RECORDED)
def test_functions_of_numpy_inside_compile(text):
    given = names(ours)
    eager = eval(text, given)
    compiled = weft.compile(eval(f"lambda x, m, i: {text}", {"np": np}))
    np.testing.assert_array_equal(compiled(given["x"], given["m"], given["i"]).numpy(), eager.numpy())


def test_functions_of_numpy_as_in_pytorch():
    """Where PyTorch's own answer is a tensor without a warning that it will fail, ours is the same."""
    for text in ("np.float32(2) * x", "np.array([1.0, 2.0, 3.0]) == x", "np.linalg.norm(x)", "np.concatenate([x, x])"):
        found = [eval(text, {"np": np, "x": make(VECTOR)}) for make in (weft.tensor, torch.tensor)]
        np.testing.assert_allclose(np.asarray(found[0]), np.asarray(found[1]))
        assert isinstance(found[0], weft.Tensor) is isinstance(found[1], torch.Tensor)


def test_gradients_through_functions_of_numpy():
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    np.mean(np.sin(x) * np.array([3.0, 5.0], np.float32)).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.cos([1.0, 2.0]) * [1.5, 2.5], rtol=1e-6)
    for call in (lambda: np.cbrt(x), lambda: np.add.reduce(x), lambda: np.sin(x, out=np.zeros(2, np.float32))):
        with pytest.raises(weft.GraphError, match=r"given a tensor that requires grad; expected .* x\.detach"):
            call()


# ---- einops ---------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
PATTERNS = {
    "permute": lambda e, x: e.rearrange(x, "b c h w -> b h w c"),
    "split": lambda e, x: e.rearrange(x, "b c (h p) w -> b (c p) w h", p=2),
    "flat": lambda e, x: e.rearrange(x, "b c h w -> (b c h w)"),
    "ones": lambda e, x: e.rearrange(x, "b c h w -> b 1 c h w 1"),
    "list": lambda e, x: e.rearrange([x, x * 2], "n b c h w -> b (n c) h w"),
    "ellipsis": lambda e, x: e.rearrange(x, "b ... w -> w ... b"),
    "mean": lambda e, x: e.reduce(x, "b c h w -> b c", "mean"),
    "max": lambda e, x: e.reduce(x, "b c (h 2) (w 2) -> b c h w", "max"),
    "min": lambda e, x: e.reduce(x, "b c h w -> ", "min"),
    "sum": lambda e, x: e.reduce(x, "b c h w -> 1 c 1 1", "sum"),
    "prod": lambda e, x: e.reduce(x, "b c h w -> c h", "prod"),
    "repeat": lambda e, x: e.repeat(x, "b c h w -> b c (h r) w k", r=2, k=3),
    "einsum": lambda e, x: e.einsum(x, x, "b c h w, b c h v -> b w v"),
    "pack": lambda e, x: e.pack([x, x * 2], "b c h *")[0],
    "unpack": lambda e, x: e.unpack(*e.pack([x, x * 2], "b * w"), "b * w")[1],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_einops(name):
    einops = pytest.importorskip("einops")
    x, theirs = weft.tensor(X, requires_grad=True), torch.tensor(X, requires_grad=True)

    def apply(x):
        return PATTERNS[name](einops, x)

    result, expected = apply(x), apply(theirs)
    assert result.shape == tuple(expected.shape)
    np.testing.assert_allclose(result.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    (expected * expected).sum().backward()
    (result * result).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-4)
    compiled = weft.compile(apply)(x.detach())
    np.testing.assert_array_equal(compiled.numpy(), result.detach().numpy())
    step = weft.compile(weft.grad(lambda x: (apply(x) * apply(x)).sum()))
    np.testing.assert_allclose(step(x.detach()).numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_other_functions_of_einops():
    einops = pytest.importorskip("einops")
    x = weft.tensor(X)
    assert einops.parse_shape(x, "b c h _") == {"b": 2, "c": 3, "h": 4}
    np.testing.assert_array_equal(einops.asnumpy(x), X)
    assert einops.reduce(weft.tensor([[True, False]]), "a b -> a", "any").tolist() == [True]
    with pytest.raises(einops.EinopsError, match=r"Shape mismatch|divis"):
        einops.rearrange(x, "b c (h p) w -> b c h p w", p=3)


@pytest.mark.parametrize("first", ["weft", "einops"])
def test_einops_may_be_imported_before_or_after(first):
    pytest.importorskip("einops")
    second = "einops" if first == "weft" else "weft"
    used = "import numpy\neinops.rearrange(numpy.ones((2, 3)), 'a b -> b a')\n" if first == "einops" else ""
    code = f"import {first}\n{used}import {second}\nprint(einops.rearrange(weft.ones(2, 3), 'a b -> b a').shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(3, 2)\n"


def test_weft_does_not_import_einops():
    code = "import sys, weft; print('einops' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
