"""Parts of a test run: pytest's option `--shard 2/5` runs the second of five parts of the tests that were chosen.

Every chosen test is in exactly one part, the same in every process and every run: tests go to the parts in turn, in the
order in which they are collected. Neighbours, which are the cases of one test, cost about the same, so parts do too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")


def parse(text: str) -> tuple[int, int]:
    """(part, how many parts there are) of '2/5'; parts are counted from 1."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part, parts = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"given {text!r}; expected I/N with 1 <= I <= N, such as 2/5")
    return part, parts


def split(tests: Sequence[T], part: int, parts: int) -> tuple[list[T], list[T]]:
    """The tests of one part, and those of the others."""
    kept = list(tests[part - 1 :: parts])
    return kept, [test for number, test in enumerate(tests) if number % parts != part - 1]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("weft")
    group.addoption("--shard", metavar="I/N", type=parse, help="run the I-th of N parts of the tests that were chosen")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard = config.getoption("--shard")
    if shard is not None:
        items[:], others = split(items, *shard)
        config.hook.pytest_deselected(items=others)
