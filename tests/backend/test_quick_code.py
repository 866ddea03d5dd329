"""Kernels that LLVM compiles without optimisation, as many tests have them, give the bits of users' kernels."""

from collections import Counter

import pytest

import weft
from tests.backend.random_checks import FUZZ, same_bits
from tests.quick_code import quick_code
from tests.records import RECORDS
from tests.records.cases import Case, cases, results
from weft.backends.cpu import jit

CHOSEN = 360 if FUZZ else 100
PARTS = 4


def chosen_cases() -> list[Case]:
    """A case each of so many records, of all kinds of operations: forward and gradient, in all dtypes."""
    chosen = []
    for number, record in enumerate(RECORDS[:: len(RECORDS) // CHOSEN]):
        found = list(cases(record))
        chosen.append(found[7 * number % len(found)])
    return chosen


def values(case: Case) -> list:
    weft.manual_seed(0)
    outputs = results(case)
    weft.eval(*outputs)
    return [output.numpy() for output in outputs]


@pytest.mark.parametrize("part", range(PARTS))
def test_same_bits(part, cold, monkeypatch):
    monkeypatch.setattr(jit.jit(), "addresses", users := {})  # quick code takes kernels that exist already
    with weft.device("cpu"):
        for case in chosen_cases()[part::PARTS]:
            before = set(users)
            with quick_code():
                quick = values(case)
                assert set(users) == before
            for one, two in zip(values(case), quick, strict=True):
                same_bits(one, two, str(case))
    assert len(users) > CHOSEN // PARTS


def test_cases_are_of_all_kinds():
    chosen = chosen_cases()
    assert len(chosen) >= CHOSEN
    assert min(Counter(case.gradient for case in chosen).values()) > CHOSEN // 5
    assert {case.dtype for case in chosen} >= {"float16", "bfloat16", "float32", "float64", "int32", "bool"}


def test_quick_code_is_other_code(cold, monkeypatch):
    """The level is in the key of the machine code and reaches LLVM: the object files differ."""
    made = []
    compile_text = jit.Jit._compile
    monkeypatch.setattr(jit.disk, "read", lambda *key: None)
    monkeypatch.setattr(jit.Jit, "_compile", lambda self, text: made.append(compile_text(self, text)) or made[-1])
    with weft.device("cpu"):
        x = weft.arange(1031, dtype=weft.float32)
        with quick_code():
            first = ((x * 3.25 + 1.5).sin() * 0.8125).numpy()
        second = ((x * 3.25 + 1.5).sin() * 0.8125).numpy()
    assert len(made) == 2 and made[0] != made[1]
    same_bits(first, second, "sin")
