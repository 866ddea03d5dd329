"""What a kernel's line in the list refers to: operations, records, tests, layers; whether they exist, and
whether a record calls the operation that it is named for."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import weft
from tests.layers.records import records
from tests.records import RECORDS, Record
from tests.records.record import Inputs, samples_for
from weft.names.namespaces import function_of
from weft.ops.registry import OPERATIONS

ROOT = Path(__file__).parents[2]
RECORD = {record.name: record for record in RECORDS}


def resolve(path: str) -> Any:
    """What stands at a path under `weft`, None if nothing does."""
    found: Any = weft
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def codes_of(function: Any) -> set[CodeType]:
    """The code that runs when an operation of the table, or another function, is called."""
    codes = {inspect.unwrap(entry.function).__code__ for entry in OPERATIONS if function_of(entry) is function}
    if codes:
        return codes
    for entry in OPERATIONS:  # activations with `inplace`, which wrap their function once more
        if entry.name == getattr(function, "__name__", None) and {"functional", "flag"} <= entry.namespaces:
            codes.add(inspect.unwrap(entry.function).__code__)
    plain = inspect.unwrap(function, stop=lambda one: not inspect.isfunction(getattr(one, "__wrapped__", None)))
    return codes or {plain.__code__}


def calls(record: Record, function: Any) -> bool:
    """Whether the record's function calls the operation, on its first sample."""
    wanted, reached = codes_of(function), False

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal reached
        reached = reached or (event == "call" and frame.f_code in wanted)

    dtype = record.dtypes[0]
    sample = samples_for(record, dtype)[0]
    inputs = Inputs(sample, dtype)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        record.fn(*inputs.weft_args, **sample.kwargs)
    finally:
        sys.setprofile(before)
    return reached


def has_gradient(record: Record) -> bool:
    """Whether the record's gradients are compared."""
    return record.differentiable and any(dtype.startswith("float") for dtype in record.dtypes)


@functools.cache
def functions_in(path: str) -> dict[str, ast.FunctionDef]:
    """The test functions of a file."""
    file = ROOT / path
    if not file.exists():
        return {}
    tree = ast.parse(file.read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def has_test(test: str) -> bool:
    """Whether a test exists: 'file::function', or 'file::function[value]' with a value of one of its parameters."""
    path, _, name = test.partition("::")
    name, _, value = name.rstrip("]").partition("[")
    if name not in functions_in(path):
        return False
    return not value or value in _parameters(path, name)


def _parameters(path: str, name: str) -> set[str]:
    """The values that a test is parametrized with, as far as they are strings."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    marks = [mark for mark in getattr(getattr(module, name), "pytestmark", ()) if mark.name == "parametrize"]
    return {value for mark in marks for value in mark.args[1] if isinstance(value, str)}


def runs_on_gpus(test: str) -> bool:
    """Whether a test is one for GPUs, or runs on every device."""
    path, _, name = test.partition("::")
    if path.startswith("tests/gpu/"):
        return True
    text = (ROOT / path).read_text()
    function = functions_in(path)[name.partition("[")[0]]
    of_file = re.search(r'^pytestmark = pytest\.mark\.usefixtures\(.*"on_each_device"', text, re.MULTILINE)
    return of_file is not None or "on_each_device" in ast.unparse(function)


@functools.cache
def layer_records() -> frozenset[str]:
    """The layers that have a record."""
    return frozenset(record.name for record in records())


def family_of(layer: str) -> str:
    """The file of a layer, and of its records."""
    return weft.nn.get(layer).__module__.rpartition(".")[2]
