"""Padded and packed sequences (`nn.utils.rnn`), beside torch's."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.nn.utils import rnn as theirs

import weft
from weft.nn.utils import rnn as ours

pytestmark = pytest.mark.usefixtures("on_each_device")

LENGTHS = [[3, 1, 5, 3], [5, 5, 5, 5], [1, 1, 1, 1], [5, 4, 2, 1], [2, 2, 1, 2]]


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


def same(one, other):
    if other is None:
        assert one is None
        return
    np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert one.numpy().dtype == other.numpy().dtype


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
def test_packing_and_back(lengths, batch_first, tail):
    x = array(*((4, 5) if batch_first else (5, 4)), *tail)
    for enforce in [False, True] if sorted(lengths, reverse=True) == lengths else [False]:
        one = ours.pack_padded_sequence(weft.tensor(x), lengths, batch_first, enforce)
        other = theirs.pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), batch_first, enforce)
        for part, expected in zip(one, other, strict=True):
            same(part, expected)
        assert one.batch_sizes.device.kind == "cpu"
        for options in ({}, {"padding_value": -1.5}, {"total_length": 7}, {"total_length": max(lengths)}):
            found = ours.pad_packed_sequence(one, batch_first, **options)
            for part, expected in zip(found, theirs.pad_packed_sequence(other, batch_first, **options), strict=True):
                same(part, expected)
        for part, expected in zip(ours.unpack_sequence(one), theirs.unpack_sequence(other), strict=True):
            same(part, expected)


def test_gradients_go_through_packing():
    x = array(5, 4, 2)
    mine, other = weft.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    for module, given in ((ours, mine), (theirs, other)):
        packed = module.pack_padded_sequence(given, [2, 5, 1, 3], enforce_sorted=False)
        (packed.data**3).sum().backward(retain_graph=True)
        (module.pad_packed_sequence(packed)[0] ** 2).sum().backward()
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tail", [(), (2,), (2, 3)])
def test_pad_sequence(batch_first, side, tail):
    parts = [array(length, *tail) for length in (2, 4, 1)]
    one = ours.pad_sequence([weft.tensor(part) for part in parts], batch_first, 7.0, side)
    other = theirs.pad_sequence([torch.tensor(part) for part in parts], batch_first, 7.0, side)
    same(one, other)
    if side == "right":
        for part, expected in zip(ours.unpad_sequence(one, [2, 4, 1], batch_first), parts, strict=True):
            np.testing.assert_array_equal(part.numpy(), expected)


def test_pack_sequence_of_integers():
    parts = [np.arange(3), np.arange(5), np.arange(1)]
    one = ours.pack_sequence([weft.tensor(part) for part in parts], enforce_sorted=False)
    other = theirs.pack_sequence([torch.tensor(part) for part in parts], enforce_sorted=False)
    for part, expected in zip(one, other, strict=True):
        same(part, expected)
    same(ours.invert_permutation(one.sorted_indices), other.unsorted_indices)
    assert ours.invert_permutation(None) is None


def test_packed_sequences_are_tuples_that_can_be_moved_and_copied():
    packed = ours.pack_sequence([weft.ones(3), weft.zeros(4)], enforce_sorted=False)
    data, sizes, order, inverse = packed
    assert data is packed.data and isinstance(packed, tuple)
    again = ours.PackedSequence(data, sizes, order)
    same(again.unsorted_indices, inverse)
    for other in (packed.double(), packed.cpu(), copy.copy(packed), pickle.loads(pickle.dumps(packed)), again):
        parts = [part.numpy().tolist() for part in ours.unpack_sequence(other)]
        assert parts == [[1.0] * 3, [0.0] * 4]
    assert packed.double().data.dtype == weft.float64 and packed.long().data.dtype == weft.int64


def test_wrong_lengths_are_named():
    x = weft.ones(5, 3)
    for lengths, text in (
        ([5, 0, 1], "the length 0; expected lengths from 1 to 5"),
        ([6, 2, 1], "the length 6"),
        ([5, 2], "one for each of 3 sequences"),
        ([1, 2, 3], r"decreasing order.*enforce_sorted=False"),
        ([3.0, 2.0, 1.0], "integers"),
    ):
        with pytest.raises((weft.RangeError, weft.ShapeError, weft.DTypeError), match=text):
            ours.pack_padded_sequence(x, lengths)
    with pytest.raises(RuntimeError):  # as torch
        theirs.pack_padded_sequence(torch.ones(5, 3), torch.tensor([5, 1, 0]))
    with pytest.raises(weft.RangeError, match="total_length=2"):
        ours.pad_packed_sequence(ours.pack_padded_sequence(x, [5, 2, 1]), total_length=2)
    with pytest.raises(weft.ShapeError, match="differ in the first axis only"):
        ours.pad_sequence([weft.ones(2, 3), weft.ones(2, 4)])
    with pytest.raises(weft.ShapeError, match="at least one"):
        ours.pad_sequence([])
    with pytest.raises(weft.RangeError, match="'left' or 'right'"):
        ours.pad_sequence([weft.ones(2)], padding_side="both")


def test_packing_inside_a_compiled_function():
    x = weft.tensor(array(5, 3, 2))

    @weft.compile
    def packed(x):
        inside = ours.pack_padded_sequence(x, [2, 5, 1], enforce_sorted=False)
        return inside.data, ours.pad_packed_sequence(inside, total_length=5)[0]

    outside = ours.pack_padded_sequence(x, [2, 5, 1], enforce_sorted=False)
    data, padded = packed(x)
    same(data, outside.data)
    same(padded, ours.pad_packed_sequence(outside, total_length=5)[0])
    with pytest.raises(weft.GraphError, match=r"packed inside.*Fix: .*lengths="):
        weft.compile(lambda packed: ours.pad_packed_sequence(packed)[0])(outside)
    with pytest.raises(weft.GraphError, match=r"a list of ints"):
        weft.compile(lambda x, n: ours.pack_padded_sequence(x, n).data)(x, weft.tensor([5, 2, 1]))
