"""What a contributor edits to add a primitive, an operation, a layer or a fusion rule: done in a copy, and counted.

`docs/adding.md` is the page for people. Files that a command writes (`make stubs`) are not counted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import weft

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]

# Each place: (file, text before which the new text goes, new text).
Place = tuple[str, str, str]

RECORD = "\nRECORDS += [Record({name!r}, weft.{name}, lambda x: {torch}, shapes(), FLOATS)]\n"

PRIMITIVE: list[Place] = [
    (
        "weft/graph/primitives.py",
        '    elementwise("not", 1,',
        '    elementwise("cube", 1, rules.float_rule, numpy_function(lambda x: x * x * x), cost=2),\n',
    ),
    (
        "weft/grad/rules.py",
        '    "erf": _erf,\n',
        '    "cube": lambda node, g: (mul(g, mul(3.0, mul(node.srcs[0], node.srcs[0]))),),\n',
    ),
    ("weft/kernels/math/functions.py", '    "exp": exp,\n', '    "cube": lambda x: x * x * x,\n'),
    (
        "tests/unit/test_cube.py",
        "",
        "import weft\nfrom weft.core.tensor import Tensor\nfrom weft.graph.layout import make_canonical\n\n\n"
        "def cube(x):\n    return Tensor(make_canonical('cube', (x.node,)), x.requires_grad, is_leaf=False)\n\n\n"
        "def test_cube():\n"
        "    values = [-1.5, 0.0, 2.0]\n"
        "    for device in ('cpu', 'reference'):\n"
        "        x = weft.tensor(values, device=device, requires_grad=True)\n"
        "        y = cube(x)\n"
        "        assert y.tolist() == [v**3 for v in values]\n"
        "        y.sum().backward()\n"
        "        assert x.grad.tolist() == [3 * v**2 for v in values]\n"
        "    assert weft.compile(cube)(weft.tensor(values)).tolist() == [v**3 for v in values]\n"
        "    weft.testing.verify(cube, weft.tensor(values))\n",
    ),
]
OPERATION: list[Place] = [
    (
        "weft/ops/activation.py",
        '@operation("weft functional method")\n@in_float32\ndef prelu(',
        '@operation("weft functional method")\n@in_float32\ndef squareplus(input: Node) -> Node:\n'
        '    """(x + sqrt(x * x + 4)) / 2."""\n'
        '    need_float("squareplus", input)\n'
        '    return mul(add(input, unary("sqrt", add(mul(input, input), 4.0))), 0.5)\n\n\n',
    ),
    ("tests/records/elementwise.py", "", RECORD.format(name="squareplus", torch="(x + (x * x + 4).sqrt()) / 2")),
]
LAYER: list[Place] = [
    (
        "weft/nn/basic/activation.py",
        '@layer(learns="-")\nclass ReLU6(',
        '@layer(learns="-", oracle="torch: x / 2 + 1")\nclass HalfPlus(Module):\n'
        '    """y = x / 2 + 1.\n\n    Shape: input [*], output the same.\n    """\n\n'
        "    def forward(self, input: Tensor) -> Tensor:\n        return input * 0.5 + 1.0\n\n\n",
    ),
    (
        "tests/layers/records/activation.py",
        "",
        "\nRECORDS.append(\n    LayerRecord(\n"
        "        name='HalfPlus', make=nn.HalfPlus, inputs=lambda draw: (draw.normal(2, 3),),\n"
        "        oracle=lambda state, inputs, training: inputs[0] * 0.5 + 1.0, no_bad=ANY,\n    )\n)\n",
    ),
]
# Two elementwise regions that read one value each share a kernel, whatever their size.
FUSION: list[Place] = [
    (
        "weft/compiler/fusion/merge.py",
        "    if not _is_launch_bound(a, b, tuning, has_workgroups) and not any(",
        "    if _read_one_value_each(a, b):\n        return True\n",
    ),
    (
        "weft/compiler/fusion/merge.py",
        "def _is_launch_bound(",
        "def _read_one_value_each(a: Draft, b: Draft) -> bool:\n"
        '    """Whether both are elementwise over one value: together they are two streams in and two out."""\n'
        '    return a.domain.form == "map" and len(a.reads) == len(b.reads) == 1\n\n\n',
    ),
    (
        "tests/unit/test_one_value_each.py",
        "",
        "import pytest\nimport weft\n\n\n"
        "def both(x, y):\n    return x.exp(), y.sqrt()\n\n\n"
        "def products(x, y, z, w):\n    return x * y, z * w\n\n\n"
        "@pytest.mark.parametrize(('function', 'kernels'), [(both, 1), (products, 2)])\n"
        "def test_one_value_each(function, kernels):\n"
        "    given = [weft.rand(512, 1024) for _ in range(function.__code__.co_argcount)]\n"
        "    compiled = weft.compile(function)\n"
        "    results = [one.numpy().tobytes() for one in compiled(*given)]\n"
        "    assert len(compiled.plan) == kernels\n"
        "    assert results == [one.numpy().tobytes() for one in function(*given)]\n"
        "    weft.testing.verify(function, *given)\n",
    ),
]


def add(copy: Path, places: list[Place]) -> int:
    """Make the edits; returns in how many places."""
    for file, before, text in places:
        path = copy / file
        old = path.read_text() if path.exists() else ""
        if before:
            assert old.count(before) == 1, (file, before)
            old = old.replace(before, text + before)
        else:
            old += text
        path.write_text(old)
    return len({file for file, _, _ in places})


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the tree with all of them added."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("weft", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "docs").mkdir()
    for places in (PRIMITIVE, OPERATION, LAYER, FUSION):
        add(folder, places)
    run(folder, "tools/stubs.py")
    return folder


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder), "WEFT_CACHE_DIR": str(folder / "cache")}
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


@pytest.mark.parametrize(
    ("places", "files", "edits"), [(PRIMITIVE, 4, 4), (OPERATION, 2, 2), (LAYER, 2, 2), (FUSION, 2, 3)]
)
def test_places_are_few(places, files, edits):
    assert len({file for file, _, _ in places}) <= files and len(places) <= edits


def test_a_primitive(copy):
    """Eager, compiled, its gradient, and each kernel against the reference."""
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_cube.py")


def test_an_operation(copy):
    """Under all its names, compiled, and its record against torch, forward and backward."""
    script = """
import torch, weft
from tests.records.elementwise import RECORDS
record = RECORDS[-1]
assert record.name == "squareplus"
values = [-3.0, 0.0, 0.5, 4.0]
x, y = weft.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
mine, theirs = record.fn(x), record.torch_fn(y)
mine.sum().backward(), theirs.sum().backward()
assert torch.allclose(torch.tensor(mine.tolist()), theirs) and torch.allclose(torch.tensor(x.grad.tolist()), y.grad)
assert x.squareplus().tolist() == weft.nn.functional.squareplus(x).tolist() == mine.tolist()
assert weft.compile(weft.squareplus)(weft.tensor(values)).tolist() == mine.tolist()
print(weft.squareplus.__doc__)
"""
    assert "(x + sqrt(x * x + 4)) / 2." in run(copy, "-c", script)
    assert "def squareplus(" in (copy / "weft/nn/functional.pyi").read_text()


def test_a_layer(copy):
    """In weft.nn, in the catalogue, in the stub; compiled and in the gradient; its record against the oracle."""
    script = """
import weft
from tests.layers.checks import CHECKS, NotApplicable
from tests.layers.records.activation import RECORDS
assert weft.nn.get("half_plus") is weft.nn.HalfPlus and "HalfPlus" in weft.nn.layers()
record, checked = RECORDS[-1], 0
for check in CHECKS.values():  # values, gradients, compiled, in bfloat16, saved and loaded, ...
    try:
        check(record)
        checked += 1
    except NotApplicable:
        pass
print(record.name, checked)
"""
    name, checked = run(copy, "-c", script).split()
    assert name == "HalfPlus" and int(checked) > 5
    assert "HalfPlus" in (copy / "weft/nn/__init__.pyi").read_text()


def test_a_fusion_rule(copy):
    """The kernels that it merges, and those that it does not; the same bits; each kernel against the reference. The
    tests run with the spec checker, which looks at every result of a pass."""
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_one_value_each.py")


def test_without_the_rule_the_kernels_are_apart():
    step = weft.compile(lambda x, y: (x.exp(), y.sqrt()))
    step(weft.rand(512, 1024), weft.rand(512, 1024))
    assert len(step.plan) == 2


def test_the_page_has_the_fusion_rule_as_it_is_tested():
    text = (ROOT / "docs" / "adding.md").read_text()
    for block in [textwrap.dedent(new).strip() for _, before, new in FUSION if before]:
        assert textwrap.indent(block, "   ") in text, block


def test_the_page_names_files_that_exist():
    text = (ROOT / "docs" / "adding.md").read_text()
    files = re.findall(r"`((?:weft|tests|docs|tools)/[\w/]+\.\w+)`", text)
    assert len(files) > 20 and [file for file in files if not (ROOT / file).exists()] == []
    assert {file for places in (PRIMITIVE, OPERATION, LAYER, FUSION) for file, before, _ in places if before} <= set(
        files
    )
