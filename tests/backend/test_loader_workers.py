"""Worker threads and processes: the same batches for any number of them, failures that name the sample, clean ends."""

import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import weft
import weft.data as data
from weft.data import streaming

ROOT = Path(__file__).parents[2]
SECONDS = 60  # far more than anything here takes; a hang is a failure, not a wait


class Squares(data.Dataset):
    """Samples (k^2, k), and what some of them do instead."""

    def __init__(self, length=20, does=None):
        self.length, self.does = length, does or {}

    def __getitem__(self, index):
        action = self.does.get(index)
        if action == "raise":
            raise KeyError("no such file")
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "exit":
            os._exit(3)
        if action == "sleep":
            time.sleep(60)
        if isinstance(action, Path):  # a file that says that this sample is being read
            action.touch()
            time.sleep(60)
        if action == "unpicklable":
            raise type("Local", (Exception,), {})("only here")
        return np.full(2, index**2, np.float32), index

    def __len__(self):
        return self.length


class Stream(data.IterableDataset):
    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def __iter__(self):
        for k in range(7):
            if k == self.fails_at:
                raise ValueError("bad record")
            yield k


class Words(data.Dataset):
    """Samples by words."""

    def __getitem__(self, word):
        if word == "bad":
            raise KeyError("no such file")
        return word

    def __len__(self):
        return 4


def loader_threads():
    return [one for one in threading.enumerate() if one.name.startswith("weft-loader")]


def children():
    return [one for one in multiprocessing.active_children() if one.name.startswith("weft-worker")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    for thread in loader_threads():  # code of a dataset may still be inside
        thread.join(SECONDS)
    assert not loader_threads() and not children()


def values(loader):
    return [[part.tolist() for part in batch] for batch in loader]


WORKERS = [(0, "thread"), (1, "thread"), (3, "thread"), (2, "process")]


def test_batches_do_not_depend_on_the_workers(on_each_device):
    found = []
    for workers, kind in WORKERS:
        loader = data.DataLoader(
            Squares(), 3, shuffle=True, seed=5, num_workers=workers, worker=kind, device=on_each_device,
            persistent_workers=workers > 0,
        )  # fmt: skip
        epochs = [values(loader), values(loader)]
        assert epochs[0] != epochs[1] and loader.wait_seconds > 0
        found.append(epochs)
        if kind == "process":
            assert len(children()) == 2  # kept between epochs
            assert next(iter(loader))[0].device == weft.get_device(on_each_device)
            del loader
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_stream_is_read_in_order(kind):
    loader = data.DataLoader(Stream(), 2, num_workers=2, worker=kind, last="pad")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 0]]
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5], [6, 0]]


@pytest.mark.parametrize(("workers", "kind"), WORKERS)
def test_an_error_names_the_sample(workers, kind):
    for dataset, index, error in ((Squares(does={7: "raise"}), 7, KeyError), (Stream(fails_at=3), 3, ValueError)):
        loader = data.DataLoader(dataset, 2, num_workers=workers, worker=kind)
        with pytest.raises(error) as caught:
            list(loader)
        assert f"sample {index}" in "".join(caught.value.__notes__)
    if kind == "process":
        with pytest.raises(data.WorkerError, match=r"sample 4: (.|\n)*only here"):
            list(data.DataLoader(Squares(does={4: "unpicklable"}), 2, num_workers=2, worker=kind))


@pytest.mark.parametrize(("action", "how"), [("die", "killed by SIGKILL"), ("exit", "exit code 3")])
def test_a_dead_worker_is_an_error_that_names_the_sample(action, how):
    begin = time.monotonic()
    loader = data.DataLoader(Squares(does={5: action}), 2, num_workers=2, worker="process")
    with pytest.raises(data.WorkerError, match=f"{how} at sample 5"):
        list(loader)
    assert time.monotonic() - begin < SECONDS


def test_a_worker_killed_from_outside(tmp_path):
    """While the consumer waits for the sample that it reads."""
    reading = tmp_path / "reading"
    batches = iter(data.DataLoader(Squares(does={9: reading}), 1, num_workers=1, worker="process"))
    for _ in range(9):
        next(batches)
    (process,) = children()

    def kill():
        limit = time.monotonic() + SECONDS
        while not reading.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(0.2)  # the consumer waits by then, or will find the process dead
        os.kill(process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(data.WorkerError, match="SIGKILL at sample 9"):
        next(batches)
    killer.join()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_leaving_early_ends_the_workers(kind):
    for _ in data.DataLoader(Squares(200), 1, num_workers=2, worker=kind):
        break
    gc.collect()
    for thread in loader_threads():
        thread.join(SECONDS)
    assert not loader_threads() and not children()


class Blocked(data.Dataset):
    """Sample 2 waits until it is let go."""

    def __init__(self):
        self.gate, self.reached = threading.Event(), threading.Event()

    def __getitem__(self, index):
        if index == 2:
            self.reached.set()
        assert index < 2 or self.gate.wait(SECONDS)
        return index

    def __len__(self):
        return 4


def test_a_timeout_names_the_samples(monkeypatch):
    """No time passes until sample 2 is read, however slow the machine is; from then on a second at each look."""
    dataset, seconds = Blocked(), itertools.count()

    def look() -> float:
        return float(next(seconds)) if dataset.reached.is_set() else 0.0

    monkeypatch.setattr(streaming, "JOIN_SECONDS", 0.01)
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=look, perf_counter=time.perf_counter))
    batches = iter(data.DataLoader(dataset, 2, num_workers=1, timeout=0.5))
    next(batches)
    with pytest.raises(data.WorkerError, match=r"no batch for 0.5 seconds, while reading samples \[2, 3\]"):
        next(batches)
    dataset.gate.set()


def test_what_cannot_be_sent_to_a_process():
    loader = data.DataLoader(Squares(), 2, collate_fn=lambda items: items, num_workers=1, worker="process")
    with pytest.raises(weft.RangeError, match=r"cannot be sent to a process.*worker='thread'"):
        next(iter(loader))
    tensors = data.TensorDataset(weft.arange(6), weft.ones(6, 2))  # tensors can
    found = data.DataLoader(tensors, 4, num_workers=1, worker="process")
    assert values(found) == values(data.DataLoader(tensors, 4))


def test_threads_are_started_in_themselves():
    begun = []
    loader = data.DataLoader(
        range(40), 1, num_workers=2, worker_init_fn=lambda number: begun.append((number, threading.get_ident()))
    )
    assert len(list(loader)) == 40
    assert {number for number, _ in begun} <= {0, 1} and threading.get_ident() not in {one for _, one in begun}
    assert 1 <= len(begun) == len({number for number, _ in begun})


def test_any_order_when_it_may_be():
    loader = data.DataLoader(Squares(), 2, num_workers=3, in_order=False)
    assert sorted(one for _, numbers in loader for one in numbers.tolist()) == list(range(20))


class BlockedStream(data.IterableDataset):
    def __init__(self):
        self.gate = threading.Event()

    def __iter__(self):
        assert self.gate.wait(SECONDS)
        yield 1


@pytest.mark.parametrize(
    ("make", "what"), [(Blocked, r"samples \[2, 3\]"), (BlockedStream, "the next items of a stream")]
)
def test_a_timeout_of_the_first_batch_says_what_is_read(make, what, monkeypatch):
    """Nothing comes until the timeout was seen: the gate is opened afterwards, so no other time counts."""
    monkeypatch.setattr(streaming, "JOIN_SECONDS", 0.01)
    dataset = make()
    order = {} if make is BlockedStream else {"sampler": [2, 3, 0, 1]}
    batches = iter(data.DataLoader(dataset, 2, num_workers=1, timeout=0.1, **order))
    with pytest.raises(data.WorkerError, match=f"no batch for 0.1 seconds, while reading {what}"):
        next(batches)
    dataset.gate.set()


def test_workers_that_died_are_replaced():
    loader = data.DataLoader(Squares(), 2, num_workers=1, worker="process", persistent_workers=True)
    expected = values(loader)
    (first,) = children()
    os.kill(first.pid, signal.SIGKILL)
    first.join(SECONDS)
    assert values(loader) == expected
    (second,) = children()
    assert second.pid != first.pid
    del loader


def test_the_thread_that_reads_uses_the_default_device():
    with weft.device("reference"):
        (batch,) = list(data.DataLoader(range(2), 2, num_workers=1))
    assert batch.device.name == "reference"


UNGUARDED = """
import numpy as np
import weft.data as data

rows = data.ArrayDataset(np.zeros((100_000, 10)))  # more than a pipe holds
next(iter(data.DataLoader(rows, 1, num_workers=1, worker="process")))
"""


def test_a_script_without_a_guard_does_not_hang(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=SECONDS,
    )  # fmt: skip
    assert result.returncode == 1
    assert "WorkerError: DataLoader: given worker 0" in result.stderr and "__main__" in result.stderr


def test_forked_workers_take_any_dataset():
    offset = 5
    rows = [lambda k=k: k + offset for k in range(6)]

    class Called(data.Dataset):  # cannot be pickled
        def __getitem__(self, index):
            return rows[index]()

        def __len__(self):
            return len(rows)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, from Python 3.12 on
        loader = data.DataLoader(Called(), 2, num_workers=2, worker="process", multiprocessing_context="fork")
        assert [batch.tolist() for batch in loader] == [[5, 6], [7, 8], [9, 10]]


INTERRUPTED = """
import os, sys, time
import weft.data as data

class Slow(data.Dataset):
    def __getitem__(self, index):
        time.sleep(60 if index > 3 else 0)
        return index

    def __len__(self):
        return 10

if __name__ == "__main__":
    batches = iter(data.DataLoader(Slow(), 1, num_workers=2, worker=sys.argv[1]))
    next(batches)
    try:
        print("ready", flush=True)
        for batch in batches:
            pass
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


def is_there(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_an_interrupt_ends_everything(kind, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script), kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # it waits for a batch by then; an interrupt before is caught as well
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        output, errors = process.communicate(timeout=SECONDS)
        assert output == "stopped\n" and errors == "" and process.returncode == 0
        limit = time.monotonic() + SECONDS
        while is_there(process.pid):
            assert time.monotonic() < limit, "a process of the group is left"
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


WORDS = ["begin", "end", "stop", "read"]


@pytest.mark.parametrize(("workers", "kind"), WORKERS)
def test_any_word_may_be_a_sample_or_its_key(workers, kind):
    options = {"num_workers": workers, "worker": kind}
    assert list(data.DataLoader(WORDS, batch_size=None, **options)) == WORDS
    assert list(data.DataLoader(Words(), batch_size=None, sampler=WORDS, **options)) == WORDS
    assert list(data.DataLoader(Words(), batch_size=2, sampler=WORDS, **options)) == [WORDS[:2], WORDS[2:]]
    with pytest.raises(KeyError) as caught:
        list(data.DataLoader(Words(), batch_size=None, sampler=["begin", "bad"], **options))
    assert any("raised while reading sample 'bad'" in note for note in caught.value.__notes__)


class Drawn(data.Dataset):
    """Samples that are drawn when they are read, from each of the usual generators."""

    def __getitem__(self, index):
        return np.array([random.random(), np.random.rand(), weft.rand(1).item()])  # noqa: NPY002

    def __len__(self):
        return 8


def test_what_a_dataset_draws_in_processes_follows_from_the_seed():
    """For any number of workers; other samples and other epochs draw other numbers."""

    def run(workers):
        loader = data.DataLoader(Drawn(), 2, num_workers=workers, worker="process", seed=3)
        return np.stack([np.concatenate([batch.numpy() for batch in loader]) for _ in range(2)])

    found = run(2)
    assert len(np.unique(found)) == found.size
    np.testing.assert_array_equal(found, run(1))


def seed_by_number(number):
    random.seed(number)


def test_what_a_worker_init_fn_seeds_stays_seeded():
    loader = data.DataLoader(Drawn(), 2, num_workers=1, worker="process", seed=3, worker_init_fn=seed_by_number)
    stream = random.Random(0)
    found = np.concatenate([batch.numpy() for batch in loader])
    assert found[:, 0].tolist() == [stream.random() for _ in range(8)]


def test_two_iterations_at_a_time_have_processes_of_their_own():
    """With workers that are kept, too: each gets its own batches, and one set of processes stays."""
    loader = data.DataLoader(Squares(12), 2, num_workers=2, worker="process", persistent_workers=True)
    expected = [batch[1].tolist() for batch in loader]
    first, found = iter(loader), ([], [])
    found[0].append(next(first)[1].tolist())
    second = iter(loader)
    for _ in range(3):
        found[1].append(next(second)[1].tolist())
        found[0].append(next(first)[1].tolist())
    found[0].extend(batch[1].tolist() for batch in first)
    found[1].extend(batch[1].tolist() for batch in second)
    assert found == (expected, expected)
    assert len(children()) == 2
    del loader, first, second
    gc.collect()
