"""The edge cases of records: a batch or sequence of one, NaN, inputs that are not contiguous, evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.layers.checks import NotApplicable, _compare
from tests.layers.instances import arrays_of, assert_close, make_layer, state_of, tensors
from tests.layers.record import COLUMNS, Case, Draw, LayerRecord
from weft.base import tree


def applies(record: LayerRecord, column: str) -> bool:
    """Whether a column of the edge cases makes sense for a layer."""
    return not COLUMNS[column] or COLUMNS[column] in record.traits


def check_edge(record: LayerRecord, column: str) -> None:
    """One edge case. A column that applies has a case, is made from the inputs, or has a sentence why not."""
    given = record.edges.get(column)
    if isinstance(given, str):
        assert len(given) > 10, f"{record.id}: {column}: a reason, please"
        raise NotApplicable(given)
    if given is not None:
        _compare(record, given, record.training if column != "eval" else False)
        return
    automatic = {
        "batch of one": _batch_of_one,
        "sequence of one": _sequence_of_one,
        "nan": _nan,
        "not contiguous": _not_contiguous,
        "eval": _eval,
    }
    assert column in automatic, f"{record.id}: the column {column!r} is empty"
    automatic[column](record)


def _per_array(inputs: tuple[Any, ...], change: Callable[[int, np.ndarray], np.ndarray]) -> tuple[Any, ...]:
    return tuple(
        change(number, value) if isinstance(value, np.ndarray) else value for number, value in enumerate(inputs)
    )


def _batch_of_one(record: LayerRecord) -> None:
    def first(number: int, array: np.ndarray) -> np.ndarray:
        axis = 0 if record.batch_axes is None else record.batch_axes[number]
        return array if axis is None or not array.ndim else array.take([0], axis)

    _compare(record, Case(inputs=lambda draw: _per_array(record.inputs(draw), first)), record.training)


def _sequence_of_one(record: LayerRecord) -> None:
    def first(number: int, array: np.ndarray) -> np.ndarray:
        return array.take([0], record.sequence_axis) if array.ndim > record.sequence_axis else array

    _compare(record, Case(inputs=lambda draw: _per_array(record.inputs(draw), first)), record.training)


def _nan(record: LayerRecord) -> None:
    """A NaN in the input is a NaN in the same results as in the oracle's."""
    if record.oracle is None:
        raise NotApplicable("its results are random")
    inputs = record.inputs(Draw())
    floats = [k for k, value in enumerate(inputs) if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    if not floats:
        raise NotApplicable("no input is floating-point")
    spoiled = inputs[floats[0]].copy()
    spoiled.reshape(-1)[spoiled.size // 2] = np.nan
    inputs = (*inputs[: floats[0]], spoiled, *inputs[floats[0] + 1 :])
    layer = make_layer(record)
    state = state_of(layer)
    ours, theirs = arrays_of(layer(*tensors(inputs))), arrays_of(record.oracle(state, inputs, record.training))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other), err_msg=f"{record.id}: where NaN is")


def _not_contiguous(record: LayerRecord) -> None:
    """Transposed views and strided slices give the results of plain tensors."""
    inputs = tensors(record.inputs(Draw()))

    def view(tensor: weft.Tensor) -> weft.Tensor:
        if tensor.ndim >= 2:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        return weft.stack([tensor, tensor], -1)[..., 0] if tensor.ndim else tensor

    leaves, structure = tree.flatten(inputs)
    views = tree.unflatten(structure, [view(leaf) if isinstance(leaf, weft.Tensor) else leaf for leaf in leaves])
    layer, other = make_layer(record), make_layer(record)
    weft.manual_seed(3)
    expected = layer(*inputs)
    weft.manual_seed(3)
    assert_close(other(*views), expected, 1e-6, 1e-6, f"{record.id} on views")


def _eval(record: LayerRecord) -> None:
    if record.oracle is None:
        raise NotApplicable("its results are random: see its own checks")
    _compare(record, Case(), False)
