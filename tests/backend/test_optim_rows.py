"""Tables of which few rows have a gradient: SGD and Adagrad touch these alone, with the numbers of the whole update."""

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F

MANY_ROWS, WIDTH, ENTRIES = 2_000_000, 64, 4096
TOUCHED = ENTRIES * WIDTH * 4  # bytes of the rows, if they differ
KINDS = pytest.mark.parametrize("kind", ["SGD", "Adagrad"])


def lookup_step(table, optimizer):
    def step(index, g):
        loss = (F.embedding(index, table) * g).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize(("kind", "tensors"), [("SGD", 1), ("Adagrad", 2)])
def test_bytes_follow_the_rows_not_the_table(kind, tensors):
    """At most four times the bytes of the rows, of the table and of its state; sorting included."""
    with weft.device("null"):
        table = weft.zeros(MANY_ROWS, WIDTH, requires_grad=True)
        optimizer = getattr(weft.optim, kind)([table], lr=0.1)

        @weft.compile
        def step(index, g):
            (F.embedding(index, table) * g).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step(weft.zeros(ENTRIES, dtype=weft.int64), weft.zeros(ENTRIES, WIDTH))
        names = [kernel.name for kernel in step.plan.kernels()]
        assert step.plan.bytes <= 4 * tensors * TOUCHED, names
        assert step.plan.memory().arena_bytes <= TOUCHED
        assert not any("copy" in name for name in names), names


def index_of(case, rows, count):
    rng = np.random.default_rng(len(case))
    return {
        "different": lambda: rng.permutation(rows)[:count],
        "repeated": lambda: rng.integers(0, max(rows // 100, 1), count),
        "all the same": lambda: np.full(count, rows - 1),
        "ends": lambda: np.tile([0, rows - 1], count)[:count],
    }[case]()


@pytest.mark.usefixtures("on_each_device")
@KINDS
@pytest.mark.parametrize("case", ["different", "repeated", "all the same", "ends"])
@pytest.mark.parametrize(("rows", "width", "count"), [(5000, 16, 700), (9000, 3, 500), (70000, 1, 40), (1024, 33, 1)])
def test_rows_have_the_bits_of_the_whole_update(kind, case, rows, width, count):
    rng = np.random.default_rng(0)
    start, other = rng.normal(size=(rows, width)), rng.normal(size=(7,))
    index = index_of(case, rows, count)
    results = []
    for compiled in (False, True):
        table = weft.tensor(start.astype(np.float32), requires_grad=True)
        w = weft.tensor(other.astype(np.float32), requires_grad=True)
        optimizer = getattr(weft.optim, kind)([w, table], lr=0.1)  # moves to a bucket of its own

        def train(index, g, table=table, w=w, optimizer=optimizer):
            ((F.embedding(index, table) * g).sum() + (w * w).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()

        step = weft.compile(train) if compiled else train
        for number in range(3):
            g = np.random.default_rng(number).normal(size=(count, width)).astype(np.float32)
            step(weft.tensor((index + number) % rows), weft.tensor(g))
        state = optimizer.state_dict()["state"]
        sums = [entry["sum"].numpy() for entry in state.values() if "sum" in entry]
        results.append([table.numpy(), w.numpy(), *sums])
        if compiled:
            assert step.retraces == []
            assert [len(bucket.params) for bucket in optimizer.param_groups[0].buckets] == [1, 1]
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.usefixtures("on_each_device")
@KINDS
@pytest.mark.parametrize("maximize", [False, True])
def test_rows_are_torchs(kind, maximize):
    start = np.random.default_rng(0).normal(size=(3000, 8))
    table, expected = weft.tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    optimizer = getattr(weft.optim, kind)([table], lr=0.1, maximize=maximize)
    other = getattr(torch.optim, kind)([expected], lr=0.1, maximize=maximize)
    step = weft.compile(lookup_step(table, optimizer))
    rng = np.random.default_rng(1)
    for number in range(6):
        index, g = rng.integers(0, 3000, (5, 40)), rng.normal(size=(5, 40, 8))
        if number == 3:
            optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.02
        loss = step(weft.tensor(index), weft.tensor(g))
        value = (torch.nn.functional.embedding(torch.tensor(index), expected) * torch.tensor(g)).sum()
        value.backward()
        other.step()
        other.zero_grad()
        np.testing.assert_allclose(loss.item(), value.item(), rtol=1e-9)
        np.testing.assert_allclose(table.numpy(), expected.detach().numpy(), rtol=1e-12, atol=1e-14)
    assert step.retraces == []


@pytest.mark.usefixtures("on_each_device")
def test_padding_and_16_bit_tables():
    start = np.random.default_rng(0).normal(size=(4000, 8))
    results = []
    for compiled in (False, True):
        table = weft.tensor(start, dtype=weft.bfloat16).requires_grad_()
        optimizer = weft.optim.Adagrad([table], lr=0.1)

        def train(index, table=table, optimizer=optimizer):
            (F.embedding(index, table, padding_idx=3).float() ** 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step = weft.compile(train) if compiled else train
        for number in range(3):
            step(weft.tensor([3, 5, 3, number, 3999]))
        results.append(table.float().numpy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0][3], weft.tensor(start, dtype=weft.bfloat16).float().numpy()[3])


@pytest.mark.parametrize("case", ["momentum", "decay", "kept gradient", "clipped", "old table used", "new table used"])
def test_what_needs_the_whole_table_gets_it(case):
    """The numbers of the eager step, though rows alone would not do."""
    start = np.random.default_rng(0).normal(size=(4000, 8))
    options = {"momentum": {"momentum": 0.9}, "decay": {"weight_decay": 0.1}}.get(case, {})
    results = []
    for compiled in (False, True):
        table = weft.tensor(start, requires_grad=True)
        optimizer = weft.optim.SGD([table], lr=0.1, **options)

        def train(index, table=table, optimizer=optimizer):
            optimizer.zero_grad()
            (F.embedding(index, table) ** 2).sum().backward()
            if case == "clipped":
                weft.optim.clip_grad_norm_([table], 1.0)
            old = table.detach() * 2.0
            optimizer.step()
            if case != "kept gradient":
                optimizer.zero_grad()
            if case == "old table used":
                return (old * table.detach()).sum()
            return table.detach().sum() if case == "new table used" else weft.zeros(())

        step = weft.compile(train) if compiled else train
        found = [step(weft.tensor([number, 7, 7, 3999])).item() for number in range(3)]
        results.append((table.numpy(), np.array(found)))
        if case == "kept gradient":
            assert np.count_nonzero(table.grad.numpy().any(1)) == 3
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-9)


def test_what_is_traced_by_rows_sees_options_that_end_that():
    start = np.random.default_rng(0).normal(size=(4000, 8))
    table, expected = weft.tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    optimizer, other = weft.optim.SGD([table], lr=0.1), torch.optim.SGD([expected], lr=0.1)
    step = weft.compile(lookup_step(table, optimizer))
    g = np.random.default_rng(1).normal(size=(3, 8))
    for number in range(8):
        if number == 2:
            optimizer.param_groups[0]["weight_decay"] = other.param_groups[0]["weight_decay"] = 0.1
        if number == 4:
            optimizer.param_groups[0]["weight_decay"] = other.param_groups[0]["weight_decay"] = 0.0
            optimizer.param_groups[0]["update_every"] = 2
        step(weft.tensor([number, 7, 7]), weft.tensor(g))
        (torch.nn.functional.embedding(torch.tensor([number, 7, 7]), expected) * torch.tensor(g)).sum().backward()
        if number < 4 or number % 2:
            other.step()
            other.zero_grad()
        np.testing.assert_allclose(table.numpy(), expected.detach().numpy(), rtol=1e-12)


def test_rows_can_be_verified():
    table = weft.ones(4000, 8, requires_grad=True)
    optimizer = weft.optim.Adagrad([table], lr=0.5)
    weft.testing.verify(lookup_step(table, optimizer), weft.tensor([1, 2, 2]), weft.ones(3, 8))


def test_an_index_outside_the_table_is_reported_and_other_rows_stay_right():
    table = weft.ones(4000, 8, requires_grad=True)
    step = weft.compile(lookup_step(table, weft.optim.SGD([table], lr=0.5)))
    g = weft.ones(3, 8)
    step(weft.tensor([1, 2, 2]), g)
    assert table[:3, 0].tolist() == [1.0, 0.5, 0.0]
    with pytest.raises(weft.IndexRangeError):
        step(weft.tensor([1, 4000, 2]), g).item()


def test_small_tables_and_many_entries_are_updated_whole():
    for rows, count in ((64, 4), (4000, 2000)):
        table = weft.zeros(rows, 8, requires_grad=True)
        step = weft.compile(lookup_step(table, weft.optim.SGD([table], lr=0.5)))
        step(weft.zeros(count, dtype=weft.int64), weft.ones(count, 8))
        assert not any("sort" in kernel.name for kernel in step.plan.kernels())
        assert table[0, 0].item() == -0.5 * count


def test_a_table_that_was_updated_by_rows_can_be_saved_loaded_and_updated_eagerly():
    start = np.random.default_rng(0).normal(size=(4000, 8))
    table, expected = weft.tensor(start, requires_grad=True), torch.tensor(start, requires_grad=True)
    bias, other_bias = weft.zeros(8, dtype=weft.float64, requires_grad=True), torch.zeros(8, dtype=torch.float64)
    other_bias.requires_grad_()
    optimizer, other = weft.optim.Adagrad([table, bias], lr=0.1), torch.optim.Adagrad([expected, other_bias], lr=0.1)

    def train(index):
        ((F.embedding(index, table) + bias) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step = weft.compile(train)
    for number, one in enumerate([step, step, train, step, train]):
        index = [number, 9, 9, 3999]
        one(weft.tensor(index))
        ((torch.nn.functional.embedding(torch.tensor(index), expected) + other_bias) ** 2).sum().backward()
        other.step()
        other.zero_grad()
        np.testing.assert_allclose(table.numpy(), expected.detach().numpy(), rtol=1e-12)
        np.testing.assert_allclose(bias.numpy(), other_bias.detach().numpy(), rtol=1e-12)
        optimizer.load_state_dict(optimizer.state_dict())
    np.testing.assert_allclose(
        optimizer.state_dict()["state"][0]["sum"].numpy(), other.state_dict()["state"][0]["sum"].numpy(), rtol=1e-12
    )


def test_adagrad_without_epsilon_updates_the_whole_table():
    """Elements that never had a gradient become 0/0 then, compiled as eagerly."""

    def train(compiled):
        table = weft.ones(5000, 4).requires_grad_()
        optimizer = weft.optim.Adagrad([table], lr=0.5, eps=0.0)
        step = lookup_step(table, optimizer)
        (weft.compile(step) if compiled else step)(weft.tensor([1, 2]), weft.ones(2, 4))
        return table.detach().numpy()

    np.testing.assert_array_equal(train(True), train(False))


@KINDS
@pytest.mark.parametrize("after", ["two steps", "backward", "backward through the whole table"])
def test_gradients_after_an_update_of_rows_in_the_same_function(kind, after):
    """An updated table is a leaf like any other: a second backward pass in the compiled function starts from it."""

    def train(compiled):
        weft.manual_seed(3)
        table = weft.randn(5000, 4).requires_grad_()
        optimizer = getattr(weft.optim, kind)([table], lr=0.5)

        def step(index):
            for _ in range(2 if after == "two steps" else 1):
                optimizer.zero_grad()
                (F.embedding(index, table) ** 2).mean().backward()
                optimizer.step()
            if after != "two steps":
                optimizer.zero_grad()
                read = F.embedding(index, table) if after == "backward" else table
                (read**2).mean().backward()
            return table.grad

        run = weft.compile(step) if compiled else step
        grads = [run(weft.tensor(index)).numpy() for index in ([1, 2, 3], [4, 2, 4999])]
        return [*grads, table.detach().numpy()]

    for found, expected in zip(train(True), train(False), strict=True):
        np.testing.assert_array_equal(found, expected)
