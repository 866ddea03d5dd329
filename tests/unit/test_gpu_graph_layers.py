"""Graph layers on an emulated GPU: values and gradients of the CPU, and no sort where the edges come sorted."""

from __future__ import annotations

import numpy as np
import pytest
import torch  # noqa: F401  (the records need it)

import weft
from tests.layers.instances import arrays_of, make_layer, tensors, weighted
from tests.layers.record import Draw, LayerRecord
from tests.layers.records import diffusion, graph, graph_attention, message_passing
from tests.unit.lockstep import Lockstep
from weft.base.tuning import Tuning

pytestmark = pytest.mark.unit

WANTED = {
    "MPNNConv-maximum", "GCNConv-edge weights", "DirectedGraphConv", "GATConv", "GATConv-without self-loops",
    "GraphTransformerLayer-edge features", "DiffusionConv-random walk",
}  # fmt: skip
FAMILIES = (message_passing, graph, graph_attention, diffusion)
RECORDS = {record.id: record for family in FAMILIES for record in family.RECORDS if record.id in WANTED}


def results(record: LayerRecord, device, is_sorted: bool) -> list[np.ndarray]:
    """The values, and the gradients of all inputs and parameters."""
    with weft.device(device):
        layer = make_layer(record)
        x, edges, *rest = tensors(record.inputs(Draw()), requires_grad=True)
        graph = weft.adjacency(edges, x.shape[0]) if is_sorted else edges
        out = layer(x, graph, *rest)
        weighted(out).backward()
        return arrays_of([out, *[one.grad for one in (x, *rest, *layer.parameters())]])


@pytest.mark.parametrize("name", sorted(WANTED))
def test_as_on_the_cpu(name):
    device = Lockstep().device
    expected = results(RECORDS[name], "cpu", True)
    for is_sorted in (True, False):
        for one, other in zip(results(RECORDS[name], device, is_sorted), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(WANTED))
def test_nothing_is_sorted_or_scattered_on_an_adjacency(name, monkeypatch):
    monkeypatch.setattr(Lockstep, "tuning", Tuning(max_batched_launches=1))  # launches keep their names
    with weft.device(Lockstep().device):
        layer = make_layer(RECORDS[name])
        x, edges, *rest = tensors(RECORDS[name].inputs(Draw()))

        def loss(x, graph, *rest):
            return (layer(x, graph, *rest) ** 2).sum()

        step = weft.compile(lambda x, graph, *rest: weft.grad(lambda *one: loss(one[0], graph, *one[1:]))(x, *rest))
        step(x, weft.adjacency(edges, x.shape[0]), *rest)
        names = [kernel.name for kernel in step.plan.kernels()]
        assert not [name for name in names if "sort" in name or "scatter" in name or "atomic" in name], names
        step(x, edges, *rest)
        assert (
            len([kernel.name for kernel in step.plan.kernels() if "sort" in kernel.name]) == 2
        )  # by target, by source
