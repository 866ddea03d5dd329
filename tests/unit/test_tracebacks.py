"""What a person sees when Weft raises: a traceback that ends at their line, in a script, with -c, in pytest."""

import inspect
import logging
import os
import re
import subprocess
import sys
import threading
import traceback
import types
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.base.errors import WeftError, hide_frames
from weft.core import boundary

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
HERE = os.path.basename(__file__)


def frames(error):
    """(file, function) of each entry of an error's traceback."""
    return [(os.path.basename(one.filename), one.name) for one in traceback.extract_tb(error.__traceback__)]


def seen(*arguments, **environment):
    """What a new process writes to standard error."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, *arguments], env=settings, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


# --- every way in ----------------------------------------------------------------------------------------------------

x, w = weft.ones(2, 3), weft.ones(2, requires_grad=True)


class Wrong(weft.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value * 2

    @staticmethod
    def backward(ctx, g):
        return g @ weft.ones(5, 5)


def users_own(value):
    return value + weft.ones(7)


def hooked(hook):
    leaf = weft.ones(2, requires_grad=True)
    leaf.register_hook(hook)
    leaf.sum().backward()


CALLS = {
    "operator": (lambda: x + weft.ones(7), ["<lambda>"]),
    "comparison": (lambda: x == weft.ones(7), ["<lambda>"]),
    "method": (lambda: x.matmul(x), ["<lambda>"]),
    "function": (lambda: weft.stack([x, w]), ["<lambda>"]),
    "functional": (lambda: F.linear(x, w), ["<lambda>"]),
    "in place": (lambda: weft.ones(2).add_(x), ["<lambda>"]),
    "index": (lambda: x[5], ["<lambda>"]),
    "assignment": (lambda: x.__setitem__(5, 1), ["<lambda>"]),
    "creation": (lambda: weft.zeros(2, dtype="float33"), ["<lambda>"]),
    "random": (lambda: weft.randn(2, dtype="float33"), ["<lambda>"]),
    "conversion": (lambda: x.item(), ["<lambda>"]),
    "bool": (lambda: bool(x), ["<lambda>"]),
    "len": (lambda: len(weft.tensor(1.0)), ["<lambda>"]),
    "property": (lambda: weft.ones(1, 2, 3).T, ["<lambda>"]),
    "setter": (lambda: setattr(w, "grad", x), ["<lambda>"]),
    "device": (lambda: weft.device("tpu"), ["<lambda>"]),
    "to": (lambda: x.to("tpu"), ["<lambda>"]),
    "lazily": (lambda: x[weft.tensor([7])].numpy(), ["<lambda>"]),
    "printing": (lambda: str(x[weft.tensor([7])]), ["<lambda>"]),
    "eval": (lambda: weft.eval(x[weft.tensor([7])]), ["<lambda>"]),
    "compile": (lambda: weft.compile(users_own)(x), ["<lambda>", "users_own"]),
    "compiled": (lambda: weft.compile(lambda i: x[i])(weft.tensor([9])), ["<lambda>"]),
    "memory": (lambda: weft.memory_report(users_own, x), ["<lambda>", "users_own"]),
    "grad": (lambda: weft.grad(users_own)(x), ["<lambda>", "users_own"]),
    "grad of a vector": (lambda: weft.grad(lambda y: y)(x), ["<lambda>"]),
    "backward": (lambda: x.backward(), ["<lambda>"]),
    "grad of tensors": (lambda: weft.grad(x.sum(), w), ["<lambda>"]),
    "decorated": (lambda: weft.no_grad(users_own)(x), ["<lambda>", "users_own"]),
    "hook": (lambda: x.register_hook(print), ["<lambda>"]),
    "wrong hook": (lambda: hooked(lambda g: 3), ["<lambda>", "hooked"]),
    "own hook": (lambda: hooked(lambda g: users_own(x)), ["<lambda>", "hooked", "<lambda>", "users_own"]),
    "data": (lambda: setattr(x, "data", 3), ["<lambda>"]),
    "format": (lambda: f"{x:.3f}", ["<lambda>"]),
    "in": (lambda: "a" in x, ["<lambda>"]),
    "for": (lambda: list(x.sum()), ["<lambda>"]),
    "stride": (lambda: x.stride(7), ["<lambda>"]),
    "threads": (lambda: weft.set_num_threads(0), ["<lambda>"]),
    "cuda": (lambda: weft.cuda.synchronize("cuda:99"), ["<lambda>"]),
    "default dtype": (lambda: weft.set_default_dtype(weft.int8), ["<lambda>"]),
    "random state": (lambda: weft.set_rng_state(3), ["<lambda>"]),
    "new": (lambda: x.new_zeros(-1), ["<lambda>"]),
    "like": (lambda: weft.rand_like(weft.arange(3)), ["<lambda>"]),
    "own backward": (lambda: Wrong.apply(w).sum().backward(), ["<lambda>", "backward"]),
    "checkpoint": (lambda: weft.checkpoint(users_own, x), ["<lambda>", "users_own"]),
    "loop": (lambda: weft.loop(lambda s, i: (users_own(s), s), x, length=3), ["<lambda>", "<lambda>", "users_own"]),
    "optimizer": (lambda: weft.optim.Adam([w], lr=-1.0), ["<lambda>"]),
    "clipping": (lambda: weft.optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=3 @ x), ["<lambda>"]),
    "linalg": (lambda: weft.linalg.inv(x), ["<lambda>"]),
    "interop": (lambda: weft.from_dlpack(3), ["<lambda>"]),
    "kernel": (lambda: weft.kernel(3), ["<lambda>"]),
    "limits": (lambda: weft.finfo(weft.int8), ["<lambda>"]),
    "saving": (lambda: weft.save({"x": x}, "/nowhere/x.safetensors"), ["<lambda>"]),
    "dataset": (lambda: weft.data.TensorDataset(x, weft.ones(5)), ["<lambda>"]),
    "splitting": (lambda: weft.data.random_split([1, 2], [5]), ["<lambda>"]),
    "sampler": (lambda: weft.data.BatchSampler([1], 0, False), ["<lambda>"]),
    "running": (lambda: F.batch_norm(x, None, None), ["<lambda>"]),
    "numpy": (lambda: np.cbrt(w), ["<lambda>"]),
    "array": (lambda: x + np.array(["a"]), ["<lambda>"]),
}  # fmt: skip


@pytest.mark.parametrize(("call", "names"), CALLS.values(), ids=CALLS.keys())
def test_tracebacks_hold_only_frames_of_the_user(call, names):
    with pytest.raises(WeftError) as caught:
        call()
    assert frames(caught.value)[1:] == [(HERE, name) for name in names]


def test_all_that_is_public_is_a_way_in():
    """A function without `entry` would show its own frame."""
    spaces = {weft: "weft", weft.nn.functional: "weft", weft.optim: "weft"}
    spaces |= {module: module.__name__ for module in (weft.linalg, weft.autograd, weft.testing)}
    missing = [
        f"{space.__name__}.{name}"
        for space, own in spaces.items()
        for name, value in vars(space).items()
        if isinstance(value, types.FunctionType) and value.__module__.startswith(own) and not name.startswith("_")
        if not boundary.is_entry(value)
    ]
    assert missing == []


def test_methods_too():
    kinds = [weft.Tensor, weft.Generator, weft.data.DataLoader, weft.train.Trainer]
    for space in (weft.optim, weft.optim.lr_scheduler):
        values = [getattr(space, name) for name in getattr(space, "__all__", dir(space)) if not name.startswith("_")]
        kinds += [value for value in values if inspect.isclass(value) and value.__module__.startswith("weft.optim")]
    assert len(kinds) > 30
    for kind in kinds:
        for name, value in inspect.getmembers(kind, inspect.isfunction):
            public = not name.startswith("_") and name not in ("dim", "numel", "size", "draw")
            if public and value.__module__.startswith("weft"):
                assert boundary.is_entry(value), f"{kind.__name__}.{name}"


def test_entries_look_like_the_functions():
    assert str(inspect.signature(weft.zeros)).startswith("(*size")
    assert (
        weft.zeros.__name__ == "zeros"
        and "Zeros" in weft.zeros.__doc__
        and weft.zeros.__module__ == "weft.core.creation"
    )
    assert "def zeros(" in inspect.getsource(weft.zeros)


# --- what stays ------------------------------------------------------------------------------------------------------


def test_bugs_keep_their_frames(monkeypatch):
    """What Weft did not raise on purpose is not hidden."""

    def broken(*_):
        raise AttributeError("a bug")

    monkeypatch.setattr("weft.core.creation.build.full", broken)
    with pytest.raises(AttributeError) as caught:
        weft.zeros(2)
    assert ("creation.py", "full") in frames(caught.value)


def test_errors_of_the_user_keep_their_frames():
    def failing(value):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        weft.compile(failing)(x)
    assert frames(caught.value)[-1] == (HERE, "failing") and ("tracer.py", "trace") in frames(caught.value)


def test_full_tracebacks(monkeypatch):
    monkeypatch.setenv("WEFT_TRACEBACK", "full")
    with pytest.raises(weft.ShapeError) as caught:
        users_own(x)
    assert frames(caught.value)[-1] == ("common.py", "broadcast_shapes")


def test_an_error_while_another_is_handled():
    try:
        try:
            users_own(x)
        except weft.ShapeError:
            x.item()
    except weft.ShapeError as error:
        text = "".join(traceback.format_exception(error))
        assert "During handling" in text and f"{os.sep}weft{os.sep}" not in text
    loop = WeftError("one")
    loop.__context__ = other = WeftError("two")
    other.__cause__ = loop
    hide_frames(loop)  # chains may be circles


def test_loggers_and_threads_see_the_same(caplog):
    found = []

    def work():
        try:
            users_own(x)
        except weft.ShapeError as error:
            logging.getLogger("mine").exception("failed")
            found.append(frames(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[(HERE, "work"), (HERE, "users_own")]]
    assert f"{os.sep}weft{os.sep}" not in caplog.text


# --- in a process of its own -----------------------------------------------------------------------------------------

SCRIPT = """
import weft
import weft.nn.functional as F

weight = weft.ones(3, 4, requires_grad=True)

class Doubled(weft.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g + weft.ones(5)

@weft.compile
def step(x, y):
    loss = F.cross_entropy(x @ weight, y)
    return loss

def main():
    {call}

main()
"""

SHOWN = {
    "step(weft.ones(2, 4), weft.tensor([0, 1]))": (
        ["<module>", "main", "step"],
        r"weft.errors.ShapeError: matmul: given .*; expected .*\. Fix: .*\.",
    ),
    "step(weft.ones(2, 3), weft.tensor([0, 4]))": (
        ["<module>", "main"],
        r"weft.errors.IndexRangeError: cross_entropy at .*script.py:18: given the label 4 at position 1, for 4 classes"
        r"; expected 0 to 3\. Fix: .*\.",
    ),
    "F.embedding(weft.tensor([9]), weight).sum().backward(); weight.grad.tolist()": (
        ["<module>", "main"],
        r"weft.errors.IndexRangeError: embedding at .*script.py:22: given the index 9 at position 0, .*",
    ),
    "Doubled.apply(weight).sum().backward()": (
        ["<module>", "main", "backward"],
        r"weft.errors.ShapeError: add: given shapes .*",
    ),
    "print(weft.ones(3).reshape(2, 2))": (["<module>", "main"], r"weft.errors.ShapeError: reshape: given .*"),
}


@pytest.mark.parametrize(("call", "names", "last"), [(call, *rest) for call, rest in SHOWN.items()])
def test_a_script(tmp_path, call, names, last):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(call=call))
    text = seen(str(script))
    assert re.findall(r'File "([^"]+)", line \d+, in (\S+)', text) == [(str(script), name) for name in names]
    assert re.fullmatch(last, text.splitlines()[-1]), text


def test_a_script_with_full_tracebacks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(call="print(weft.ones(3).reshape(2, 2))"))
    text = seen(str(script), WEFT_TRACEBACK="full")
    assert f"{os.sep}weft{os.sep}ops{os.sep}movement.py" in text


def test_dash_c():
    text = seen("-c", "import weft\ndef f(x):\n    return x @ x\nf(weft.ones(2, 3))")
    assert re.findall(r'File "([^"]+)", line (\d+)', text) == [("<string>", "4"), ("<string>", "3")]


PYTEST = """
import weft

def helper(x):
    return weft.compile(lambda y: y @ y)(x)

def test_it():
    helper(weft.ones(2, 3))
"""


def test_pytest_shows_the_users_code_only(tmp_path):
    (tmp_path / "test_it.py").write_text(PYTEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, cwd=tmp_path)
    assert "ShapeError: matmul: given" in done.stdout and done.returncode == 1
    assert re.findall(r"^(\S+?):(\d+): ", done.stdout, re.M) == [
        ("test_it.py", "8"),
        ("test_it.py", "5"),
        ("test_it.py", "5"),
    ]
    assert "tensor.py" not in done.stdout and "compiled.py" not in done.stdout
