"""What all tests share: `weft` and `np` in the examples of docstrings, and plans that are made, not read from disk."""

import numpy as np
import pytest

import weft
from weft.compiler import plancache

plancache.ACTIVE = False  # a test that changes the compiler must neither read nor leave plans; kernels are kept


@pytest.fixture(autouse=True)
def names_for_examples(doctest_namespace):
    doctest_namespace.update(weft=weft, np=np)
