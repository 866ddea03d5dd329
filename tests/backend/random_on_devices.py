"""Random graphs on a GPU itself, real or emulated by the CPU: tests/gpu and tests/devices run them on their devices.

Beside the forms of kernels that sizes call for there are those for large values, which small graphs have where
thresholds are low. `WEFT_FUZZ=20000` draws more graphs, and others each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.backend import random_devices
from tests.backend.random_checks import (
    against_the_reference,
    alone_together_and_compiled,
    cells_written_in_place,
    examples,
    gradients_against_the_reference,
)
from tests.backend.random_graphs import Graph, graphs
from weft.base.dtypes import float64
from weft.base.errors import DeviceError
from weft.base.tuning import Tuning
from weft.compiler import plan_cache, realize
from weft.graph.node import toposort
from weft.plan.device import Device

SHAPES = {"usual": [*random_devices.LARGE_SHAPES, (40000,), (260, 260)], "low": random_devices.LARGE_SHAPES}


def check(name: str, thresholds: str, device: Device) -> None:
    """One of `CHECKS`, with the "usual" thresholds or with "low" ones."""
    if thresholds == "usual":
        CHECKS[name](device, SHAPES["usual"])
    else:
        with low_thresholds():
            CHECKS[name](device, SHAPES["low"])


@contextmanager
def low_thresholds() -> Iterator[None]:
    """Those of modules: its tuning is the device's own. Plans are made anew, and forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "ACTIVE", False)
        for table in ("_plans", "_forms"):
            patch.setattr(realize, table, type(getattr(realize, table))())
        for owner, name, value in random_devices.THRESHOLDS:
            if owner is not Tuning:
                patch.setattr(owner, name, value)
        yield


def assume_dtypes(graph: Graph, device: Device) -> None:
    values = [*graph.outputs, *graph.writes.values()]
    assume(all(node.dtype in device.dtypes for node in toposort([value.node for value in values])))


@contextmanager
def assume_bindings() -> Iterator[None]:
    """Where an operation needs more bindings than a kernel has, because a value needs several, another graph is
    drawn."""
    try:
        yield
    except DeviceError as error:
        assume("bindings of a kernel" not in str(error))
        raise


def check_values(device: Device, large: list[tuple[int, ...]]) -> None:
    @examples(25)
    @given(graphs(large=large))
    def run(graph: Graph) -> None:
        assume_dtypes(graph, device)
        with assume_bindings():
            against_the_reference(graph, device)

    run()


def check_gradients(device: Device, large: list[tuple[int, ...]]) -> None:
    if float64 not in device.dtypes:
        pytest.skip(f"{device} has no float64")

    @examples(10)
    @given(graphs(most=12, floats=float64, smooth=True, large=large))
    def run(graph: Graph) -> None:
        with assume_bindings():
            gradients_against_the_reference(graph, device)

    run()


def check_bits(device: Device, large: list[tuple[int, ...]]) -> None:
    @examples(10)
    @given(graphs(most=10, large=large))
    def run(graph: Graph) -> None:
        assume_dtypes(graph, device)
        with assume_bindings():
            alone_together_and_compiled(graph, device)

    run()


def check_cells(device: Device, large: list[tuple[int, ...]]) -> None:
    @examples(10)
    @given(graphs(most=10, writes=True, large=large), st.booleans())
    def run(graph: Graph, packed: bool) -> None:
        assume_dtypes(graph, device)
        with assume_bindings():
            cells_written_in_place(graph, packed, device)

    run()


CHECKS: dict[str, Callable[[Device, list[tuple[int, ...]]], None]] = {
    "values": check_values,
    "gradients": check_gradients,
    "bits of values alone, together and compiled": check_bits,
    "cells written in place": check_cells,
}
