"""What all tests share: `weft` and `np` in the examples of docstrings, plans that are made, not read from disk, and a
folder for compiled kernels that the workers of one run share. The user's own cache is neither read nor written."""

import os
import shutil
import tempfile

import numpy as np
import pytest

import weft
from weft.compiler import plancache

plancache.ACTIVE = False  # a test that changes the compiler must neither read nor leave plans; kernels are kept
_made_folder = ""


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
