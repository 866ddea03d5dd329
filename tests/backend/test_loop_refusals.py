"""What loops refuse: wrong states, indices and lengths."""

import pytest

import weft
from tests.backend.compiling import numbers

pytestmark = pytest.mark.usefixtures("on_each_device")

ESCAPED = []


def wrong_calls():
    x, w = weft.ones(3, 2), weft.ones(2)
    return {
        "another shape": (lambda: weft.loop(lambda s, x: (s.sum(), x), w, x), weft.ShapeError, r"number 0"),
        "another dtype": (lambda: weft.loop(lambda s, x: (s.long(), x), w, x), weft.ShapeError, "int64"),
        "another structure": (lambda: weft.loop(lambda s, x: ((s, s), x), w, x), weft.GraphError, "structure"),
        "no pair": (lambda: weft.loop(lambda s, x: s + x, w, x), weft.GraphError, r"\(state, y\)"),
        "two lengths": (lambda: weft.loop(lambda s, x: (s, s), w, (x, w)), weft.ShapeError, r"\[2, 3\]"),
        "length and xs": (lambda: weft.loop(lambda s, x: (s, s), w, x, length=4), weft.ShapeError, "length=4"),
        "no length": (lambda: weft.loop(lambda s, x: (s, s), w), weft.RangeError, "length"),
        "a scalar in xs": (lambda: weft.loop(lambda s, x: (s, s), w, w.sum()), weft.ShapeError, "scalar"),
        "no tensors": (lambda: weft.loop(lambda s, x: (s, None), (), length=2), weft.GraphError, "no tensor"),
        "a value read": (lambda: weft.loop(lambda s, x: (s if s.sum() else x, s), w, x), weft.GraphError, "weft.loop"),
        "an escape": (lambda: weft.loop(lambda s, x: (s, ESCAPED.append(s + x)), w, x), weft.GraphError, "held"),
        "an assignment": (lambda: weft.loop(lambda s, x: (s, w.add_(x)), w, x), weft.GraphError, "from outside"),
        "a string": (lambda: weft.loop(lambda s, x: (s, s), "state", x), weft.GraphError, "init"),
    }


@pytest.mark.parametrize("name", list(wrong_calls()))
def test_errors(name):
    call, kind, text = wrong_calls()[name]
    with pytest.raises(kind, match=text):
        call()
    ESCAPED.clear()


def test_an_index_out_of_range_inside_names_the_line():
    table = weft.tensor(numbers(3, 2))
    with pytest.raises(weft.IndexRangeError, match=r"test_loop_refusals\.py"):
        weft.loop(lambda s, i: (s + table[i], None), weft.zeros(2), weft.tensor([0, 1, 5]))[0].numpy()
