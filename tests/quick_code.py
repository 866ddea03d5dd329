"""Kernels for the CPU without LLVM's optimisation, which takes two thirds of the time that most tests compile.

For tests that make many kernels and look at what the IR says, not at what LLVM makes of it for users. The IR is the
same, and so are the bits of the results (tests/backend/test_quick_code.py).
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from weft.backends.cpu import jit
from weft.compiler import realize


@functools.cache
def _quick() -> tuple[jit.Target, Any, dict[str, int], Any]:
    """The target, LLVM's machine for it, the kernels that were compiled for it, by symbol, and the plans with them."""
    compiler = jit.jit()
    assert compiler.runtime_addresses  # the runtime is compiled as for users
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "target", replace(compiler.target, optimize=0))
        return compiler.target, compiler._target_machine(), {}, type(realize._plans)()


@contextmanager
def quick_code() -> Iterator[None]:
    """What is compiled meanwhile is compiled without optimisation; kernels that exist already are used. Afterwards
    plans and kernels are those of users again."""
    target, machine, addresses, plans = _quick()
    compiler = jit.jit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "target", target)
        patch.setattr(compiler, "machine", machine)
        patch.setattr(compiler, "addresses", ChainMap(addresses, compiler.addresses))
        patch.setattr(realize, "_plans", plans)
        yield
