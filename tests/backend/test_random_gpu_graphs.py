"""Random graphs through the GPU schedule, for random GPUs, run by an emulator that looks for races.

The tests below draw 254 graphs, the same ones each time; `make fuzz GRAPHS=20000` draws 5,080 others
beside those for the CPU. Every graph has a device of its own (`random_devices`).
"""

from hypothesis import given
from hypothesis import strategies as st

from tests.backend.random_checks import (
    against_the_reference,
    alone_together_and_compiled,
    cells_written_in_place,
    examples,
    gradients_against_the_reference,
)
from tests.backend.random_devices import LARGE_SHAPES, Gpu, gpus, limited_gpus
from tests.backend.random_graphs import Graph, graphs
from weft.base.dtypes import float64


@examples(90)
@given(graphs(large=LARGE_SHAPES), gpus())
def test_against_the_reference(graph: Graph, gpu: Gpu):
    with gpu.device() as device:
        against_the_reference(graph, device)


@examples(20)
@given(graphs(most=12, floats=float64, smooth=True, large=LARGE_SHAPES), gpus())
def test_gradients_against_the_reference(graph: Graph, gpu: Gpu):
    with gpu.device() as device:
        gradients_against_the_reference(graph, device)


@examples(20)
@given(graphs(most=10, large=LARGE_SHAPES), gpus())
def test_alone_together_and_compiled_are_the_same_bits(graph: Graph, gpu: Gpu):
    with gpu.device() as device:
        alone_together_and_compiled(graph, device)


@examples(20)
@given(graphs(most=10, writes=True, large=LARGE_SHAPES), st.booleans(), gpus())
def test_cells_written_in_place(graph: Graph, packed: bool, gpu: Gpu):
    with gpu.device() as device:
        cells_written_in_place(graph, packed, device)


@examples(60)
@given(graphs(large=LARGE_SHAPES), limited_gpus())
def test_limited_devices_against_the_reference(graph: Graph, gpu: Gpu):
    with gpu.device() as device:
        against_the_reference(graph, device)


@examples(20)
@given(graphs(most=12, floats=float64, smooth=True, large=LARGE_SHAPES), limited_gpus())
def test_gradients_of_limited_devices_against_the_reference(graph: Graph, gpu: Gpu):
    with gpu.device() as device:
        gradients_against_the_reference(graph, device)


@examples(12)
@given(graphs(most=10, large=LARGE_SHAPES), limited_gpus())
def test_limited_devices_alone_together_and_compiled_are_the_same_bits(graph: Graph, gpu: Gpu):
    with gpu.device() as device:
        alone_together_and_compiled(graph, device)


@examples(12)
@given(graphs(most=10, writes=True, large=LARGE_SHAPES), st.booleans(), limited_gpus())
def test_cells_of_limited_devices_written_in_place(graph: Graph, packed: bool, gpu: Gpu):
    with gpu.device() as device:
        cells_written_in_place(graph, packed, device)
