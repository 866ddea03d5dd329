"""What all tests share: `weft` and `np` in the examples of docstrings, plans that are made, not read from disk, and a
folder for compiled kernels that the workers of one run share. The user's own cache is neither read nor written. Options
of our own are those of the plugins: `--device` and `--shard`."""

import operator
import os
import shutil
import sys
import tempfile

import numpy as np
import pytest

import weft
from weft.compiler import plan_cache
from weft.names import public_paths

pytest_plugins = ["tests.chosen_device", "tests.shards"]
plan_cache.ACTIVE = False  # a test that changes the compiler must neither read nor leave plans; kernels are kept
_made_folder = ""
# Functions that are made of the table of operations: their examples are those of the functions in the table.
collect_ignore = ["weft/__init__.py", "weft/special.py", "weft/names/functions.py", "weft/nn/functional.py"]
# Classes that show their public path (`weft.Tensor`): doctest looks for their examples in the modules that define them.
for _name, _module in {**public_paths.DEFINED_IN, "jit.Compiled": "weft.jit.compiled"}.items():
    vars(sys.modules[_module]).setdefault("__test__", {})[_name] = operator.attrgetter(_name)(weft)


def pytest_configure() -> None:
    """Make the folder, which workers and what tests start inherit; one that is given (`WEFT_CACHE_DIR`) is used and
    left."""
    global _made_folder
    if not os.environ.get("WEFT_CACHE_DIR"):
        os.environ["WEFT_CACHE_DIR"] = _made_folder = tempfile.mkdtemp(prefix="weft-tests-")


def pytest_unconfigure() -> None:
    if _made_folder:
        shutil.rmtree(_made_folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def names_for_examples(doctest_namespace):
    doctest_namespace.update(weft=weft, np=np)
