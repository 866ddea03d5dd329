"""Plans on disk: a second process lowers nothing and gives the same bits; nothing wrong is ever read."""

import dataclasses
import os
import subprocess
import sys
import types
import typing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import weft
from tests.backend.random_graphs import graphs
from tests.backend.test_verify import OPERATIONS
from weft.base import disk
from weft.base.dtypes import DType
from weft.base.tree import flatten
from weft.compiler import plan_cache, realize
from weft.core.tensor import Tensor
from weft.kernels.ir.language import Kernel
from weft.plan import plan, serialize

ROOT = Path(__file__).parents[2]

TRAINING = """
import numpy as np
import weft
import weft.nn.functional as F

weft.manual_seed(0)
rng = np.random.default_rng(0)
shapes = ((40, 32), (32,), (32, 10))
weights = [weft.tensor(rng.normal(0, 0.2, shape).astype("float32"), requires_grad=True) for shape in shapes]
table = weft.tensor(rng.normal(0, 1, (50, 40)).astype("float32"), requires_grad=True)
optimizer = weft.optim.AdamW([*weights, table], lr=0.01)

@weft.compile
def step(tokens, y, rate):
    optimizer.zero_grad()
    h = (table[tokens] @ weights[0] + weights[1]).relu() * (weft.rand(24, 32) > 0.1) * rate
    loss = F.cross_entropy(h @ weights[2], y)
    loss.backward()
    optimizer.step()
    return loss, h.softmax(-1).sum(0)

tokens, y = weft.tensor(rng.integers(0, 50, 24)), weft.tensor(rng.integers(0, 10, 24))
for _ in range(3):
    loss, h = step(tokens, y, 0.5)
    print(loss.numpy().tobytes().hex(), h.numpy().tobytes().hex())
print((weights[0] * 2 + 1).cos().sum(0).numpy().tobytes().hex())
kernels = step.plan.kernels()
print([(k.name, k.source, k.bytes) for k in kernels], step.plan.memory())
"""

COUNTED = """
counters = weft.counters()
names = ("plans_built", "plans_from_disk", "kernels_rendered", "kernels_compiled", "kernels_from_disk")
print(*[counters[name] for name in names])
"""


def process(code, cache, **environment):
    """The lines that a new interpreter prints."""
    settings = {**os.environ, "WEFT_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def trained(cache, **environment):
    """(what a training run printed, (plans built, from disk, kernels rendered, compiled, from disk))."""
    *text, counts = process(TRAINING + COUNTED, cache, **environment)
    return text, tuple(map(int, counts.split()))


def plan_files(cache):
    return sorted(cache.rglob("*.plan"))


def test_a_second_process_lowers_nothing(tmp_path):
    text, (built, from_disk, rendered, compiled, objects) = trained(tmp_path)
    assert built > 2 and from_disk == 0 and rendered >= compiled > 5 and objects == 0
    again, counts = trained(tmp_path)
    assert counts == (0, built, 0, 0, compiled)
    assert again == text
    assert trained(tmp_path, WEFT_NUM_THREADS="3")[0] == text


def test_sources_outlive_their_objects(tmp_path):
    text, (built, _, _, compiled, _) = trained(tmp_path)
    for path in tmp_path.rglob("*.object"):
        path.unlink()
    again, counts = trained(tmp_path)
    assert again == text and counts == (0, built, 0, compiled, 0)


def test_damaged_plans_are_made_again(tmp_path):
    text, (built, *_) = trained(tmp_path)
    contents = {path: path.read_bytes() for path in plan_files(tmp_path)}
    assert len(contents) == built
    for number, (path, data) in enumerate(contents.items()):
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 64
        path.write_bytes([bytes(flipped), data[: len(data) // 2], b"", b"something else"][number % 4])
    again, counts = trained(tmp_path)
    assert again == text and counts[:2] == (built, 0)
    assert {path: path.read_bytes() for path in plan_files(tmp_path)} == contents


def test_a_foreign_payload_with_a_good_checksum_is_ignored(tmp_path, monkeypatch):
    text, (built, *_) = trained(tmp_path)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    for number, path in enumerate(plan_files(tmp_path)):
        key = path.parent.name + path.stem
        disk.write(disk.PLAN, key, [b"", b"\x08" * 40, serialize.pack((1, 2, 3)), serialize.pack("plan")][number % 4])
    again, counts = trained(tmp_path)
    assert again == text and counts[:2] == (built, 0)


@pytest.mark.parametrize("kind", ["object", "plan"])
def test_good_files_under_other_names_are_made_again(tmp_path, kind):
    """Each file copied over another: machine code for another kernel was run, with a segmentation fault."""
    text, (built, _, _, compiled, _) = trained(tmp_path)
    paths = sorted(tmp_path.rglob(f"*.{kind}"))
    contents = [path.read_bytes() for path in paths]
    for path, data in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(data)
    again, counts = trained(tmp_path)
    assert again == text
    assert counts == ((0, built, 0, compiled, 0) if kind == "object" else (built, 0, counts[2], 0, compiled))
    assert [path.read_bytes() for path in paths] == contents


COPIES = """
import copy, pickle
import weft
x = weft.tensor([1.0, 0.5, 3.0]).half()
for y in (x, copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))):
    print(y.tolist(), (y * 2 + 1).tolist(), y.dtype is weft.float16, (y + x).tolist())
"""


def test_copies_leave_no_wrong_kernel_behind(tmp_path):
    """A deep copy had a second float16, for which wrong kernels were made and kept for later processes."""
    plain = COPIES.replace("copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x))", "")
    expected = "[1.0, 0.5, 3.0] [3.0, 2.0, 7.0] True [2.0, 1.0, 6.0]"
    assert process(COPIES, tmp_path) == [expected] * 4
    assert process(plain, tmp_path) == [expected] and process(COPIES, tmp_path) == [expected] * 4


def test_a_cache_that_keeps_nothing(tmp_path):
    text, counts = trained(tmp_path / "a")
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert trained(blocked / "cache") == (text, counts)
    assert trained(tmp_path / "b", WEFT_CACHE_LIMIT="0") == (text, counts)
    assert not (tmp_path / "b").exists()


LINES = """
import weft
x = weft.arange(4.0)
index = weft.tensor([9])
{gap}
try:
    x[index].tolist()
except IndexError as error:
    print(error)
""" + COUNTED  # fmt: skip


def test_errors_name_the_line_of_this_process(tmp_path):
    messages = []
    for gap in ("", "\n\n"):
        script = tmp_path / f"script{len(gap)}.py"
        script.write_text(LINES.format(gap=gap))
        messages.append(process(f"import runpy; runpy.run_path({str(script)!r})", tmp_path / "cache"))
    assert "script0.py:7" in messages[0][0] and "script2.py:9" in messages[1][0]
    assert messages[1][1].split()[:3] == ["0", messages[0][1].split()[0], "0"]


def record_types(annotation, found):
    """Every class that may stand in a field of this type."""
    for part in typing.get_args(annotation):
        record_types(part, found)
    if isinstance(annotation, type) and not typing.get_args(annotation) and annotation not in found:
        found.add(annotation)
        if dataclasses.is_dataclass(annotation) and annotation is not DType and annotation is not Kernel:
            for hint in typing.get_type_hints(annotation).values():
                record_types(hint, found)


def test_every_kind_of_step_can_be_kept():
    found: set[type] = set()
    record_types(plan.Plan, found)
    for kind in typing.get_args(plan.Step) or (plan.Step,):
        record_types(kind, found)
    plain = {int, float, str, bool, bytes, type(None), types.EllipsisType, DType, Kernel}
    assert found - plain - {type(...)} <= set(serialize.RECORDS.values())
    assert all(dataclasses.fields(kind) for kind in serialize.RECORDS.values())


def test_unknown_things_are_not_kept():
    class Strange:
        pass

    for value in (Strange(), (1, Strange()), {1, 2}, np.int64(3), lambda: 1):
        with pytest.raises(serialize.Unstorable):
            serialize.pack(value)


def test_values_come_back_as_they_were():
    place = plan.Place(1, 2)
    value = (place, 1, -1.5, float("inf"), -0.0, "text", None, True, (), ((1,), (place,)), weft.float32, b"\0\xff", b"")
    again = serialize.unpack(serialize.pack(value))
    assert again == value and str(again) == str(value) and again[-3] is weft.float32
    assert np.isnan(serialize.unpack(serialize.pack(float("nan"))))
    for bad in (b"", b"\0" * 8, serialize.pack(value)[:-1], serialize.pack(value) + b"x"):
        with pytest.raises(serialize.Damaged):
            serialize.unpack(bad)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(most=15))
def test_plans_read_back_give_the_same_bits(graph):
    def values():
        tensors = [Tensor(node) for node in graph.on("cpu")]
        weft.eval(*tensors)
        return [tensor.numpy() for tensor in tensors]

    first = values()
    assembled = realize._assemble

    def through_bytes(program, device):
        made, outputs = assembled(program, device)
        assert serialize.canonical_text(program.key[1:])
        return serialize.unpack(serialize.pack(made)), outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(realize, "_assemble", through_bytes)
        patch.setattr(realize, "_plans", type(realize._plans)())
        second = values()
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, two, strict=True)


@pytest.mark.parametrize("case", OPERATIONS, ids=[case[0] for case in OPERATIONS])
def test_every_kind_of_operation_is_kept(case, monkeypatch, tmp_path):
    """A plan from disk, made by one function and found by another of the same form, gives the same bits."""
    _, function, arrays = case
    monkeypatch.setattr(plan_cache, "ACTIVE", True)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    results = []
    for _ in range(2):
        monkeypatch.setattr(realize, "_plans", type(realize._plans)())
        weft.manual_seed(0)
        before = weft.counters()
        step = weft.compile(function)
        results.append([x.numpy() for x in flatten(step(*map(weft.tensor, arrays)))[0]])
        after = weft.counters()
    assert after["plans_built"] == before["plans_built"] and after["plans_from_disk"] > before["plans_from_disk"]
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two, strict=True)
