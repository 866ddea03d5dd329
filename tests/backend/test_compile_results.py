"""Results of compiled functions."""

import collections

import pytest

import weft
from tests.backend.compiling import full, ones, parameter

pytestmark = pytest.mark.usefixtures("on_each_device")


def test_results_that_are_kept_keep_their_values():
    w = weft.zeros(())

    @weft.compile
    def step(x):
        w.add_(1.0)
        return (w * x).sum()

    x = ones(4)
    losses = []
    for _ in range(6):
        losses.append(step(x))
    assert [loss.item() for loss in losses] == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]


@pytest.mark.parametrize("read_at_once", [False, True], ids=["read later", "read at once"])
@pytest.mark.parametrize(
    "take",
    [lambda r: r.detach(), lambda r: r.reshape(-1), lambda r: r[1:], lambda r: r * 1.0, lambda r: r.clone()],
    ids=["detach", "reshape", "slice", "multiply", "clone"],
)
def test_a_value_taken_from_a_result_stays_when_the_result_is_dropped(take, read_at_once):
    w = weft.zeros(4)

    @weft.compile
    def step():
        w.add_(1.0)
        return w * 1.0

    step()
    result = step()
    taken = take(result)
    if read_at_once:
        assert set(taken.tolist()) == {2.0}
    del result
    for _ in range(3):
        step()
    assert set(taken.tolist()) == {2.0}


def test_memory_of_dropped_results_is_used_again():
    step = weft.compile(lambda x: x + 1.0)
    x = weft.zeros(1000)
    step(x)
    places = set()
    for _ in range(10):
        places.add(step(x).node.buffer.pointer)
    assert len(places) == 1
    kept = [step(x) for _ in range(5)]
    assert len({result.node.buffer.pointer for result in kept}) == 5


def test_a_result_passed_back_in():
    step = weft.compile(lambda x: x * 2.0 + 1.0)
    x, expected = ones(100), 1.0
    for _ in range(6):
        x, expected = step(x), expected * 2 + 1
    assert x.tolist() == [expected] * 100


def test_a_returned_cell_is_a_snapshot():
    w = weft.zeros(3)

    @weft.compile
    def step():
        w.add_(1.0)
        return w

    results = [step() for _ in range(4)]
    assert [result[0].item() for result in results] == [1.0, 2.0, 3.0, 4.0]
    assert all(result is not w for result in results)


def test_a_cell_returned_before_and_after_it_changes():
    w = weft.zeros(3)

    @weft.compile
    def step():
        before = w.clone()
        w.add_(1.0)
        return before, w

    for iteration in range(4):
        before, after = step()
        assert (before.tolist(), after.tolist()) == ([float(iteration)] * 3, [iteration + 1.0] * 3)


def test_a_returned_argument_and_the_same_result_twice():
    @weft.compile
    def step(x):
        y = x + 1.0
        return x, y, y

    for iteration in range(3):
        x = full((3,), float(iteration))
        same, one, two = step(x)
        assert (same.tolist(), one.tolist(), two.tolist()) == (
            [iteration] * 3,
            [iteration + 1] * 3,
            [iteration + 1] * 3,
        )


Point = collections.namedtuple("Point", "x y")


def test_nested_arguments_and_results():
    @weft.compile
    def step(batch, options, point):
        first, (second, third) = batch
        return {
            "sum": first + second["a"] + third,
            "list": [first, None, 7, "text"],
            "point": Point(point.x * 2, point.y),
            "scaled": first * options["scale"],
            "empty": (),
        }

    for iteration in range(3):
        one = full((2,), float(iteration))
        result = step([one, ({"a": ones(2)}, ones(2))], {"scale": 3.0}, Point(ones(1), 5))
        assert list(result) == ["sum", "list", "point", "scaled", "empty"]
        assert result["sum"].tolist() == [iteration + 2.0] * 2
        assert result["list"][0].tolist() == [iteration] * 2 and result["list"][1:] == [None, 7, "text"]
        assert isinstance(result["point"], Point) and result["point"].x.tolist() == [2.0] and result["point"].y == 5
        assert result["scaled"].tolist() == [3.0 * iteration] * 2
        assert result["empty"] == ()


def test_no_tensor_anywhere_is_refused():
    with pytest.raises(weft.GraphError, match=r"weft\.compile\(.*nothing.*\): given a function that returns no tensor"):

        @weft.compile
        def nothing(x):
            return 5

        nothing(ones(1))


def test_results_carry_no_history():
    w = parameter(3)
    step = weft.compile(lambda x: (w * x).sum())
    result = step(ones(3))
    assert not result.requires_grad
    with pytest.raises(weft.GraphError, match="does not require grad"):
        result.backward()
