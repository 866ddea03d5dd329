"""What all tests share: `weft` and `np` in the examples of docstrings, and torch on one thread."""

import numpy as np
import pytest

import weft


@pytest.fixture(autouse=True)
def names_for_examples(doctest_namespace):
    doctest_namespace.update(weft=weft, np=np)
