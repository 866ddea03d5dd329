"""What type checkers and editors know: stubs that are not stale, a program with right calls, one with wrong ones."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
import weft.nn.functional as F
from weft.ops.registry import OPERATIONS, entries

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "typing"
WRONG = [
    number for number, line in enumerate((PROGRAMS / "wrong.py").read_text().split("\n"), 1) if line.endswith("# wrong")
]
CHECKERS = {
    "mypy": ["-m", "mypy", "--no-incremental", "--follow-imports=silent"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


# Written in Python by PyTorch, or with other parameters on purpose.
DIFFERENT = {
    "split", "tensordot", "segment_reduce", "einsum", "tensor_split", "nonzero", "randint_like", "broadcast_shapes",
    "hsplit", "vsplit", "dsplit",
}  # fmt: skip
ALLOWED = {"generator", "training", "inplace", "requires_grad", "return_indices"}


@pytest.fixture(scope="module")
def stubs():
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "tools" / "stubs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_not_stale(stubs):
    for name, make in stubs.FILES.items():
        assert (ROOT / name).read_text() == make(), f"{name} is stale: run `make stubs`"


def run(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_what_is_wrong_and_nothing_else(checker):
    pytest.importorskip(checker)
    found = run(*CHECKERS[checker], "tests/typing/program.py", "tests/typing/wrong.py")
    complaints = re.findall(r"(\w+)\.py:(\d+)(?::\d+)?(?: -|:) error", found.stdout)
    assert {name for name, _ in complaints} == {"wrong"}, found.stdout + found.stderr
    assert sorted({int(line) for _, line in complaints}) == WRONG, found.stdout


def test_the_program_that_is_right_runs():
    done = run("tests/typing/program.py")
    assert done.returncode == 0, done.stderr


def test_help_speaks_of_tensors():
    for space in (weft, F):
        for name in space.__all__:
            value = getattr(space, name)
            if inspect.isfunction(value):
                text = str(inspect.signature(value))
                assert "Node" not in text and "Operand" not in text, (name, text)
    assert str(inspect.signature(weft.softmax)).startswith("(input: Tensor, dim: int")
    assert str(inspect.signature(weft.Tensor.add_)).startswith("(self, other: Tensor | float, *, alpha: float = 1)")


def test_names_are_public_or_hidden():
    shown = set(dir(weft))
    assert shown >= {"Tensor", "softmax", "nn", "linalg", "compile"}
    hidden = {"captures", "variant", "cell", "graph", "compiler", "kernels", "backends", "ops", "functions", "methods"}
    assert not shown & hidden
    assert all(hasattr(weft, name) for name in weft.__all__)
    assert len(weft.__all__) == len(set(weft.__all__))
    assert all(hasattr(F, name) for name in F.__all__)


def test_no_name_is_defined_twice():
    for place in ("weft", "functional", "linalg", "special", "method", "inplace"):
        names = [name for name, _ in entries(place)]
        assert len(names) == len(set(names)), (place, sorted(name for name in names if names.count(name) > 1))


def test_parameters_have_pytorchs_names():
    """Those of every operation that PyTorch has under the same name, as its own schemas tell them."""
    torch = pytest.importorskip("torch")
    ours = 0
    for entry in OPERATIONS:
        if "weft" not in entry.namespaces or not hasattr(torch, entry.name) or entry.name in DIFFERENT:
            continue
        theirs = torch._C._jit_get_schemas_for_operator(f"aten::{entry.name}")
        known = {argument.name for schema in theirs for argument in schema.arguments} - {"self"} | {"input"}
        if not theirs:
            continue
        parameters = inspect.signature(entry.function).parameters
        strange = [name for name in parameters if name not in known and name not in ALLOWED]
        assert not strange, (entry.name, strange, sorted(known))
        ours += 1
    assert ours > 150
