"""Views write through to their base and see its changes, as PyTorch's do: eagerly and in compiled functions."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from tests.backend.view_programs import Diverged, Numbers, Player, accepted, compare, play, programs

FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
RANDOM = {
    "derandomize": not FUZZ, "deadline": None, "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}  # fmt: skip


@settings(max_examples=FUZZ or 100, **RANDOM)
@given(program=programs, often=st.booleans())
def test_random_programs(program, often):
    theirs, ours = Player(torch), Player(weft)
    if not often:
        play(theirs, ours, program)
    else:
        for step in program:
            play(theirs, ours, [step])
            compare(theirs, ours)
    compare(theirs, ours)


@settings(max_examples=FUZZ or 70, **RANDOM)
@given(start=st.lists(st.integers(0, 63), min_size=10, max_size=10), program=programs, read=st.booleans())
def test_random_gradients(start, program, read):
    theirs, ours = Player(torch), Player(weft)
    for player in (theirs, ours):
        player.root(Numbers([2, *start[1:3], 0, *start[3:]]), requires_grad=True)
    try:
        play(theirs, ours, program)
    except Diverged:
        return
    if read:
        compare(theirs, ours)
    assert [x.requires_grad for x in theirs.pool] == [x.requires_grad for x in ours.pool]
    for player in (ours, theirs):
        total = player.library.zeros((), dtype=player.library.float64)
        for number, x in enumerate(player.pool):
            if x.requires_grad:
                try:
                    total = total + (x.to(player.library.float64) * float(number + 1)).sum()
                except RuntimeError as error:  # PyTorch does not use a view of several after a write to its base
                    assert player is theirs and "multiple views" in str(error)
                    return
        player.total = total
    if not theirs.total.requires_grad:
        assert not ours.total.requires_grad
        return
    theirs.total.backward()
    ours.total.backward()
    for their, our in zip(theirs.leaves, ours.leaves, strict=True):
        expected = np.zeros(our.shape) if their.grad is None else their.grad.numpy()
        found = np.zeros(our.shape) if our.grad is None else our.grad.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@settings(max_examples=FUZZ or 25, **RANDOM)
@given(before=programs, inside=programs, between=programs)
def test_random_compiled_programs(before, inside, between):
    """Tensors and views made outside, written and read inside, read and written outside between two calls."""
    theirs, ours = Player(torch), Player(weft)
    play(theirs, ours, before)
    inside = [step for step in inside if step[0] not in ("read", "drop")]
    taken: list = []

    @weft.compile
    def run():
        local = ours.copy()
        for operation, numbers, read_only in taken:
            local.step(operation, numbers)
            local.read_only = list(read_only)
        return [x + 0 if x.dtype is not weft.bool else x.clone() for x in local.pool]

    def run_theirs():
        local = theirs.copy()
        return accepted(local, inside), [x.clone() for x in local.pool]

    for number in range(3):
        steps, expected = run_theirs()
        if number == 0:
            taken += steps
        elif steps != taken:
            return
        for their, our in zip(expected, run(), strict=True):
            np.testing.assert_array_equal(our.numpy(), their.detach().numpy())
        if number:
            compare(theirs, ours)
        if number == 1:
            size = len(theirs.pool)
            play(theirs, ours, [step for step in between if step[0] != "drop"])
            del theirs.pool[size:], ours.pool[size:]
            gc.collect(0)
    compare(theirs, ours)


# ---- writes go through ----------------------------------------------------------------------------------------------

MAKE = {
    "index": lambda a: a[1],
    "negative index": lambda a: a[-1],
    "slice": lambda a: a[1:],
    "steps": lambda a: a[::2, 1::2],
    "ellipsis and None": lambda a: a[..., None, 2],
    "narrow": lambda a: a.narrow(0, 0, 1),
    "select": lambda a: a.select(1, 2),
    "split": lambda a: a.split(2)[1],
    "chunk": lambda a: a.chunk(2, 1)[0],
    "tensor_split": lambda a: a.tensor_split(3, 1)[2],
    "unbind": lambda a: a.unbind(1)[3],
    "iteration": lambda a: list(a)[2],
    "T": lambda a: a.T,
    "mT": lambda a: a.mT,
    "t": lambda a: a.t(),
    "transpose": lambda a: a.transpose(0, 1),
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "permute": lambda a: a.permute(1, 0),
    "movedim": lambda a: a.movedim(0, 1),
    "view": lambda a: a.view(2, 6),
    "reshape": lambda a: a.reshape(-1),
    "flatten": lambda a: a.flatten(),
    "unflatten": lambda a: a.unflatten(1, (2, 2)),
    "squeeze": lambda a: a[:1].squeeze(0),
    "unsqueeze": lambda a: a.unsqueeze(1),
    "detach": lambda a: a.detach(),
    "contiguous": lambda a: a[1:].contiguous(),
    "views of views": lambda a: a[1:].T[::2].unsqueeze(0)[0, 1],
}
COPIES = {
    "clone": lambda a: a.clone(),
    "arithmetic": lambda a: a + 0,
    "reshape of a transpose": lambda a: a.T.reshape(-1),
    "flatten of a slice": lambda a: a[:, 1:].flatten(),
    "contiguous transpose": lambda a: a.T.contiguous(),
    "list": lambda a: a[[0, 1]],
    "tensor": lambda a: a[type(a)([0, 1]).long()] if isinstance(a, torch.Tensor) else a[weft.tensor([0, 1])],
    "flip": lambda a: a.flip(0),
    "roll": lambda a: a.roll(1, 0),
}
WRITE = {
    "add_": lambda v: v.add_(10),
    "fill_": lambda v: v.fill_(7),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(v * 2 + 1),
    "set": lambda v: v.__setitem__(Ellipsis, 3),
    "augmented": lambda v: v.__imul__(3),
}


def both(dtype="float32"):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    return torch.tensor(array), weft.tensor(array)


CASES = [(make, "add_", "float32") for make in sorted(MAKE)]
CASES += [(make, write, "int64") for make in ("steps", "T", "views of views") for write in sorted(WRITE)]


@pytest.mark.parametrize(("make", "write", "dtype"), CASES)
def test_a_write_to_a_view_changes_its_base(make, write, dtype):
    theirs, ours = both(dtype)
    views = []
    for a in (theirs, ours):
        other = a[:, 1:3]
        view = MAKE[make](a)
        WRITE[write](view)
        views.append((view, other))
    assert ours.tolist() == theirs.tolist()
    theirs += 1
    ours += 1
    for one, two in zip(views[1], views[0], strict=True):
        assert one.tolist() == two.tolist()


@pytest.mark.parametrize("make", sorted(COPIES))
def test_a_write_to_a_copy_changes_nothing_else(make):
    theirs, ours = both()
    for a in (theirs, ours):
        COPIES[make](a).add_(100)
        held = COPIES[make](a)
        a.mul_(2)
        held += 1
    assert ours.tolist() == theirs.tolist() == (np.arange(12).reshape(3, 4) * 2).tolist()


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda a: a.diagonal(), r"x\[i, i \+ offset\] = value"),
        (lambda a: a.unfold(0, 2, 1), r"x\[index\] = value"),
        (lambda a: a[:, :1].expand(3, 5), "before it was expanded"),
        (lambda a: a.unsqueeze(0).broadcast_to((2, 3, 4))[0], "clone"),
    ],
)
def test_other_views_are_read_and_refuse_writes(make, fix):
    theirs, ours = both()
    views = [make(theirs), make(ours)]
    for write in (lambda v: v.add_(1), lambda v: v.__iadd__(1), lambda v: v.__setitem__(0, 1), lambda v: v.zero_()):
        with pytest.raises(weft.GraphError, match=fix):
            write(views[1])
    theirs += 5
    ours += 5
    assert views[1].tolist() == views[0].tolist()
    make(ours).clone().add_(1)
    assert ours.tolist() == theirs.tolist()


def test_a_negative_step_is_a_view_as_in_numpy():
    array, a = np.arange(6.0), weft.arange(6).float()
    for one in (array, a):
        view = one[4::-2]
        view += 10
        one[::-1][0] = -1
    assert a.tolist() == array.tolist()


def test_tensors_of_one_element_as_indices():
    theirs, ours = both()
    for a, at in ((theirs, torch.tensor(1)), (ours, weft.tensor(1))):
        row = a[at]
        row += 5
        a[at, 2] *= 2
        a[at] -= 1
    assert ours.tolist() == theirs.tolist()


def test_augmented_assignment_writes_once():
    """`x[i] += v` is one write: the assignment that Python makes after it finds the view itself."""
    x, y = weft.zeros(5, 3), weft.zeros(5, 3)
    x[2] += 1
    y[2] = y[2] + 1
    assert x.node is y.node
    x[1:3][0] *= 2
    x[0] = x[0]
    assert x.tolist() == y.tolist()


# ---- what it costs --------------------------------------------------------------------------------------------------


def test_an_unwritten_view_is_an_ordinary_value():
    """No node is added by making or reading it, and only what is asked for is computed."""
    a = weft.arange(12).reshape(3, 4) * 2
    row = a[1]
    assert row.node.srcs and row.node is row.node
    node = row.node
    row.sum().item()
    assert row.node is node and a.node.buffer is None
    row.numpy()
    assert a.node.buffer is None
    a += 1
    assert row.node is not node and row.node is row.node


def test_a_slice_of_a_computed_tensor_is_an_address():
    data = weft.arange(1000).float()
    weft.eval(data)
    batch = data[100:200]
    weft.eval(batch)
    assert batch.node.buffer.slab is data.node.buffer.slab and batch.node.buffer.offset == 400
    del data
    batch += 1  # nobody else is left to see it
    assert batch._view is None and batch.tolist()[0] == 101.0


def test_bases_and_views_are_freed_without_the_collector():
    gc.collect()
    gc.disable()
    try:
        a = weft.zeros(4, 4)
        view = a[1:]
        part = view.T[0]
        part += 1
        a *= 2
        references = [weakref.ref(x) for x in (a, view, part)]
        aliases = weakref.ref(part._view.aliases)
        del a, view
        assert references[0]() is not None and references[1]() is None  # the base stays for its last view
        assert part.tolist() == [2.0, 2.0, 2.0]
        del part
        assert aliases() is None and all(reference() is None for reference in references)
    finally:
        gc.enable()


def test_a_view_does_not_hold_the_history_of_a_base_that_is_gone():
    x = weft.ones(100)
    base = (x * 3).exp()
    node = weakref.ref(base.node)
    first, second = base[:1], base[1:2]
    del base
    weft.eval(first, second)
    assert node() is None
    joined = second[:0]
    first += 1
    second += 2
    np.testing.assert_allclose([first.item(), second.item()], np.exp(3) + np.array([1, 2]), rtol=1e-6)
    assert joined.shape == (0,)


@pytest.mark.parametrize("computed", [False, True])
def test_overlapping_views_of_a_base_that_is_gone(computed):
    base = weft.arange(6) * 1
    one, two = base[:4], base[2:].view(2, 2)
    del base
    if computed:
        weft.eval(one, two)
    one += 10
    two[0] *= 2
    assert one.tolist() == [10, 11, 24, 26] and two.tolist() == [[24, 26], [4, 5]]


def test_many_views_of_one_base():
    """Each row is derived when it is read; views that are gone are forgotten."""
    a = weft.zeros(6, 2)
    kept = a[0]
    for row in a:
        row += 1
    assert a.sum().item() == 12.0
    for k in range(1000):
        a[k % 6]
    assert len(kept._view.aliases._members) < 1000
    a += 1
    assert kept.tolist() == [2.0, 2.0]


def test_a_long_chain_of_writes_is_computed_on_the_way():
    a = weft.zeros(3)
    view = a[1:]
    for _ in range(1000):
        view += 1
    assert a.node.depth <= 300
    assert a.tolist() == [0.0, 1000.0, 1000.0]


# ---- gradients ------------------------------------------------------------------------------------------------------


def leaf(*values):
    return weft.tensor(list(values), requires_grad=True)


def test_gradients_flow_through_writes():
    x, w = leaf(1.0, 2.0, 3.0), leaf(5.0)
    y = x * 2
    tail, head = y[1:], y[:1]
    tail *= 4
    head.copy_(w)
    (y * y).sum().backward()
    assert x.grad.tolist() == [0.0, 256.0, 384.0] and w.grad.tolist() == [10.0]


def test_a_base_without_gradients_takes_those_of_what_is_written():
    x, base = leaf(1.0, 2.0), weft.zeros(4)
    other = base[1:3]
    base[:2] = x * 3
    assert base.requires_grad and other.requires_grad and not base.is_leaf
    (other * 2).sum().backward()
    assert x.grad.tolist() == [0.0, 6.0]


def test_writes_to_leaves():
    w = leaf(1.0, 2.0)
    row, shared = w[:1], w.detach()
    for write in (lambda: row.add_(1), lambda: w.__setitem__(0, 1.0), lambda: w.view(2).mul_(2)):
        with pytest.raises(weft.GraphError, match=r"leaf that requires grad.*no_grad"):
            write()
    y = w * 1
    with weft.no_grad():
        row.add_(1)
        made = y[1:]
    shared *= 10
    assert w.tolist() == [20.0, 20.0] and w.is_leaf and w.requires_grad and row.requires_grad
    (row * 3 + w.sum()).sum().backward()
    assert w.grad.tolist() == [4.0, 1.0]
    with pytest.raises(weft.GraphError, match="made under no_grad"):
        made.add_(1)


def test_a_write_under_no_grad_keeps_the_gradient():
    x = leaf(1.0, 2.0)
    y = x * 3
    part = y[1:]
    with weft.no_grad():
        y[0] = 100
        part.mul_(2)
    y.detach().add_(1)
    assert y.tolist() == [101.0, 13.0] and y.requires_grad and part.requires_grad
    (y.sum() + part.sum()).backward()
    assert x.grad.tolist() == [3.0, 6.0]
    with pytest.raises(weft.GraphError, match=r"through which no gradient flows.*clone"):
        y.detach().copy_(leaf(1.0, 1.0))


def test_views_that_are_leaves():
    """Parameters that lie in one tensor: both see what an optimizer does."""
    flat = weft.zeros(4)
    a, b = flat[:2].requires_grad_(), flat[2:].view(1, 2).requires_grad_()
    first = a[:1]
    with pytest.raises(weft.GraphError, match="a view of a leaf that requires grad"):
        first += 1
    b.detach()[0, 0] = 5.0
    b.detach().zero_()
    optimizer = weft.optim.SGD([a, b], lr=1.0)
    for iteration in range(1, 4):
        optimizer.zero_grad()
        ((a * 2).sum() + b.sum() + first.sum()).backward()
        assert (a.grad.tolist(), b.grad.tolist()) == ([3.0, 2.0], [[1.0, 1.0]])
        optimizer.step()
        assert flat.tolist() == [-3.0 * iteration, -2.0 * iteration, -iteration, -iteration]
        assert (first.item(), a.is_leaf, flat.requires_grad) == (-3.0 * iteration, True, False)
