"""DataLoader: the batches of a dataset, in order or shuffled. After `torch.utils.data.DataLoader`.

The path of one batch. An epoch begins with a seed, an epoch number and a position (0, or where a saved state says);
the sampler draws its positions from a generator of (seed, epoch). From there a batch goes one of two ways:

- A data set of tensors or arrays that fits lives on the device (`resident.py`): order, rows and augmentation are
  computed there in one plan.
- Anything else streams: lists of positions are tasks (`streaming.py`), workers read and collate them (`reading.py`,
  `workers.py`), in threads or processes, and put the batch on the device; the consumer's thread applies `transform`.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from weft.base import host_memory
from weft.base.errors import RangeError, WeftError, hide_frames, problem
from weft.base.tree import flatten
from weft.core.boundary import entry_point
from weft.core.device import default_device, get
from weft.core.tensor import Tensor
from weft.data.collate import default_collate as default_collate
from weft.data.dataset import is_stream
from weft.data.loader_options import (
    RESIDENT_SHARE,
    EpochProgress,
    check_generator,
    check_options,
    check_order,
    check_workers,
    count_row_elements,
)
from weft.data.reading import END, Source, find_rows, row_parts
from weft.data.resident import ResidentData, apply_transform, check_batches, count_batches, upload_rows
from weft.data.sampler import BatchSampler, RandomSampler, SequentialSampler, draw_positions, draws_itself
from weft.data.seeds import (
    ITEMS,
    ORDER,
    TRANSFORM,
    draw_seed,
    epoch_seed,
    restore_generator,
    save_generator,
)
from weft.data.streaming import prefetch
from weft.data.workers import LocalWorker, start_processes
from weft.jit.compiled import compile
from weft.random.generator import Generator

__all__ = ["DataLoader"]

Item = TypeVar("Item")
FIXED = frozenset({
    "dataset", "batch_size", "sampler", "batch_sampler", "collate_fn", "last", "drop_last", "transform",
    "num_workers", "worker", "worker_init_fn", "persistent_workers", "multiprocessing_context", "device",
})  # fmt: skip
INTERPRETER = "reference"  # the kind of device that runs no compiled functions


@entry_point
class DataLoader(Generic[Item]):
    """The batches of a dataset.

    `device`: where batches are. A data set of tensors or arrays that takes at most half of the memory available there
    is put there once (`resident=False` prevents it, `resident=True` demands it); others stream, uploaded ahead.
    `seed`: of shuffles and transforms; with the epoch it decides both. Without one, each epoch draws it from
    `generator`, or from Weft's. `last`: a short last batch is kept ("keep"), dropped ("drop"), or filled with the first
    items of the epoch ("pad"). `transform`: tensor code for whole batches, such as `weft.data.transforms`, applied on
    the device. `num_workers` threads, or processes with `worker="process"`, read `prefetch_factor` batches ahead each;
    a stream to a device has one thread at least, and an iterable dataset one worker at most. `persistent_workers` keeps
    processes between epochs (threads start in no time and are not kept). Where the code of a dataset draws from Weft's
    default generator, it draws from a stream of the batch's own, which follows from seed, epoch and positions.
    `wait_seconds` is the time that the consumer has waited for batches.

    What a loader was made with is fixed. Data that was put on the device is put there again when the dataset has other
    tensors or arrays; changes inside an array of NumPy are not seen there (`resident=False` reads it each time).

    `pin_memory` and `pin_memory_device` are PyTorch's and have no effect: uploads go through pinned memory anyway.

    >>> data = weft.utils.data.TensorDataset(weft.arange(5))
    >>> [batch.tolist() for (batch,) in weft.utils.data.DataLoader(data, batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: Any = None,
        seed: int | None = None,
        last: str | None = None,
        transform: Callable[..., Any] | None = None,
        worker: str = "thread",
        resident: bool | None = None,
    ):
        check_order(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last)
        check_generator(generator)
        last = ("drop" if drop_last else "keep") if last is None else last
        check_options(batch_size, batch_sampler, last, drop_last)
        check_workers(num_workers, worker, prefetch_factor, timeout, persistent_workers, device)
        self.dataset, self.num_workers, self.generator, self.seed = dataset, num_workers, generator, seed
        self.device = None if device is None else get(device)
        self.last, self.drop_last, self.transform, self.timeout = last, last == "drop", transform, timeout
        self.worker, self.worker_init_fn, self.in_order = worker, worker_init_fn, in_order
        self.multiprocessing_context, self.persistent_workers = multiprocessing_context, persistent_workers
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.batch_size = None if batch_sampler is not None else batch_size
        is_iterable = self.is_iterable = is_stream(dataset)
        self._orders_itself = sampler is None and batch_sampler is None and not is_iterable
        self.sampler: Any = sampler
        if sampler is None and not is_iterable:
            self.sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler: Any = batch_sampler
        if batch_sampler is None and batch_size is not None and not is_iterable:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, self.drop_last)
        self.collate_fn = collate_fn
        self.progress = EpochProgress()  # of the iteration that began last
        self.wait_seconds = 0.0
        self._next_epoch = 0
        self._loaded: dict[str, Any] | None = None  # a state to go on from
        self._transform_generator = Generator()
        self._transform_plan: Any = None  # the transform, compiled
        self._next_plan: tuple[ResidentData, Any] | None = None  # resident data, and its next batch, compiled
        self._asks_resident = resident
        self._resident: dict[str, tuple[list[Any], ResidentData | None]] = {}  # and what its rows were taken from
        self._active: ResidentData | None = None  # what counts the position, where it is not the loader
        self._kept_workers: Sequence[Any] = ()
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and "_is_made" in self.__dict__:
            expected = "what the loader was made with: batches may have been read ahead, or be on the device"
            raise problem(RangeError, "DataLoader", f"another {name}", expected, "make another DataLoader")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"DataLoader({self.dataset!r:.200}, batch_size={self.batch_size})"

    # ---- epochs and positions ----------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the iteration that began last."""
        return self.progress.epoch

    @property
    def position(self) -> int:
        """The batches that the iteration that began last has given out."""
        return self.progress.position

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch. (Without it, each iteration is the next one.)"""
        self._next_epoch = epoch
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None

    def state_dict(self) -> dict[str, Any]:
        """Epoch, batches given out, seed, draws made by the transform, and the state of a `generator` that seeds are
        drawn from: what `load_state_dict` goes on from."""
        if self._loaded is not None:
            return dict(self._loaded)
        if self._active is not None:
            state = self._active.state_dict()
            is_complete = state["position"] >= self._active.batches
        else:
            state = self.progress.state_dict()
            is_complete = self.progress.is_complete or self._is_at_end()
        if is_complete:
            return {"epoch": self._next_epoch, "position": 0, "seed": self.seed, "draws": 0} | self.generator_state()
        return state | {"batches": self._length()} | self.generator_state(self.progress)

    @property
    def seed_generator(self) -> Generator | None:
        """What the seeds of epochs are drawn from, unless it is Weft's default generator or the seed is given."""
        if self.seed is not None:
            return None
        return self.generator or getattr(self._order(), "generator", None)

    def generator_state(self, progress: EpochProgress | None = None) -> dict[str, Any]:
        """The part of a state that holds the generator of seeds, if there is one: as it is now or, for an iteration in
        which a sampler of a user's own draws from it, as it was when this began, since it will be iterated again."""
        return save_generator(self.seed_generator) | (progress.generator if progress is not None else {})

    def _order(self) -> Any:
        """What gives the positions of batches, or of items where there are no batches."""
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state_dict` was taken, within an epoch too."""
        missing = {"epoch", "position", "seed", "draws"} - set(state)
        if missing:
            given = f"a state without {sorted(missing)}"
            raise problem(RangeError, "DataLoader.load_state_dict", given, "what state_dict returned")
        check_batches(state, self.batch_size, self._length())
        self._loaded = dict(state)
        self._next_epoch = int(state["epoch"])
        restore_generator(self.seed_generator, state)

    def _length(self) -> int | None:
        """The number of batches, if it is known."""
        try:
            return len(self)
        except TypeError:
            return None

    def _is_at_end(self) -> bool:
        length = self._length()
        return length is not None and self.position >= length

    def begin_epoch(self, epoch: int | None = None, data: ResidentData | None = None) -> tuple[int, int, int]:
        """Start an epoch (the next one unless it is given): (seed, batches to leave out, draws made by then)."""
        loaded, self._loaded = self._loaded, None
        epoch = self._next_epoch if epoch is None else epoch
        seed, first, draws = self.seed, 0, 0
        if loaded is not None and loaded["epoch"] == epoch:
            first, draws = int(loaded["position"]), int(loaded["draws"])
            if first or seed is None:  # an epoch that has started keeps its seed
                seed = loaded["seed"]
        if seed is None:
            seed = draw_seed(self.seed_generator)
        has_own_order = not self.is_iterable and draws_itself(self._order())
        generator = save_generator(self.seed_generator) if has_own_order else {}
        self.progress = EpochProgress(epoch, seed, first, draws, generator, self.batch_size, is_complete=False)
        self._active, self._next_epoch = data, epoch + 1
        return seed, first, draws

    # ---- data on the device ------------------------------------------------------------------------------------------

    def resident(self, device: Any = None) -> ResidentData | None:
        """The data set on a device (the loader's unless given), or None where it streams: it has no arrays, an order or
        a collate_fn of its own, or does not fit."""
        target = get(self.device if device is None else device)
        parts = row_parts(self.dataset) if self._orders_itself else []
        known = self._resident.get(target.name)
        if (
            known is None
            or len(known[0]) != len(parts)
            or any(a is not b for a, b in zip(known[0], parts, strict=True))
        ):
            self._resident[target.name] = known = parts, self._put_on(target)
        return known[1]

    def _put_on(self, target: Any) -> ResidentData | None:
        found = find_rows(self.dataset) if self._orders_itself and self.batch_size and not self.collate_fn else None
        can_compile = target.kind != INTERPRETER
        is_wanted = self._asks_resident is not False and can_compile and found is not None and len(self.dataset) > 0
        if found is None or not is_wanted or not self._fits(found, target):
            if self._asks_resident:
                given = f"resident=True on {target.name} for {type(self.dataset).__name__} of {len(self.dataset)} items"
                expected = "tensors or arrays that fit there, a batch_size, and no sampler or collate_fn"
                raise problem(RangeError, "DataLoader", given, expected)
            return None
        parts, chosen = found
        if chosen is not None:
            parts = [one[chosen] for one in parts]
        shuffle = isinstance(self.sampler, RandomSampler)
        data = ResidentData(
            upload_rows(parts, target), self.batch_size or 1, shuffle, self.seed or 0, self.last, self.transform
        )
        data.begin_epoch, data.seed_generator = self.begin_epoch, self.seed_generator
        return data

    def _fits(self, found: tuple[Sequence[Any], Any], target: Any) -> bool:
        parts, chosen = found
        rows = len(self.dataset)
        is_there = chosen is None and all(isinstance(one, Tensor) and one.device is target for one in parts)
        nbytes = sum(one.dtype.itemsize * rows * count_row_elements(one.shape) for one in parts)
        if is_there:
            return True
        available, total = target.backend.memory()
        if total >= host_memory.UNKNOWN:
            return self._asks_resident is True
        return nbytes <= RESIDENT_SHARE * available

    def _iterate_resident(self, data: ResidentData, progress: EpochProgress) -> Iterator[Any]:
        if self._next_plan is None or self._next_plan[0] is not data:
            self._next_plan = data, compile(data.next)
        take = self._next_plan[1]
        for number in range(data.first, data.batches):
            if self.progress is not progress:
                given = (
                    "a second iteration, or an epoch of ResidentData, while one over data on the device was under way"
                )
                expected = "one at a time: they share the position on the device"
                raise problem(RangeError, "DataLoader", given, expected, "use resident=False, or another loader")
            yield list(take(data.count(number)))
        progress.is_complete = True

    # ---- streams -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        if self.device is not None and not self.is_iterable:
            data = self.resident()
            if data is not None:
                data.start_epoch(self._next_epoch)
                return self._iterate_resident(data, self.progress)
        return self.stream_batches()

    def stream_batches(self, pads: bool = True) -> Iterator[Any]:
        """The batches of the next epoch, read one after the other though the data may be on the device. Without `pads`
        a short last batch stays short, also with last="pad": evaluations take each sample once."""
        last = self.last if pads or self.last != "pad" else "keep"
        seed, first, _ = self.begin_epoch()
        return self._count(self._stream(seed, first, last), self.progress)

    def _count(self, batches: Iterator[Any], progress: EpochProgress) -> Iterator[Any]:
        """Batches after the transform; counts them and what the transform draws, in the stream of this iteration."""
        assert progress.seed is not None
        seed = epoch_seed(progress.seed, progress.epoch, TRANSFORM)
        try:
            for batch in batches:
                progress.position += 1
                self._transform_generator.set_state((seed, progress.draws))
                batch = self._transform_batch(batch)
                progress.draws = self._transform_generator.counter
                yield batch
        except WeftError as error:
            hide_frames(error)
            raise
        progress.is_complete = True

    def _transform_batch(self, batch: Any) -> Any:
        if self.transform is None:
            return batch
        leaves = flatten(batch)[0]
        if not all(isinstance(leaf, Tensor) and leaf.device.kind != INTERPRETER for leaf in leaves):
            return apply_transform(self.transform, batch, self._transform_generator)
        if self._transform_plan is None:
            self._transform_plan = compile(self._apply_transform)
        return self._transform_plan(batch)

    def _apply_transform(self, batch: Any) -> Any:
        return apply_transform(self.transform, batch, self._transform_generator)

    def _stream(self, seed: int, first: int, last: str) -> Iterator[Any]:
        is_batched = self.batch_sampler is not None
        source = Source(self.dataset, self.collate_fn, is_batched, self.batch_size, last)
        items_seed = epoch_seed(seed, self.epoch, ITEMS)
        default = default_device()
        tasks: Iterator[Any]
        if self.is_iterable:
            tasks, skip, workers = itertools.repeat(None), first, min(self.num_workers, 1)
        else:
            tasks = itertools.islice(self._tasks(seed, self.epoch, last), first, None)
            skip, workers = 0, self.num_workers
        if not workers and self.device is None:
            return self._read_here(LocalWorker(source, default, None, skip, items_seed), tasks)

        def make_workers() -> Sequence[Any]:
            if self.worker == "process" and workers:
                found = self._processes(source, default, workers, skip)
                for one in found:
                    one.seed = items_seed
                return found
            start = self.worker_init_fn if workers else None
            return [
                LocalWorker(source, default, self.device, skip, items_seed, number, start)
                for number in range(workers or 1)
            ]

        keep = self._keep_processes if self._keeps_workers() else None
        ahead = max(workers, 1) * self.prefetch_factor
        return prefetch(tasks, make_workers, ahead, self.timeout, self.in_order, keep, self._add_wait)

    def _keeps_workers(self) -> bool:
        return self.persistent_workers and self.worker == "process" and not self.is_iterable

    def _processes(self, source: Source, default: Any, count: int, skip: int) -> Sequence[Any]:
        """Processes for one iteration: those that were kept, unless another iteration has them, or new ones."""
        kept, self._kept_workers = self._kept_workers, ()
        if kept and all(one.is_alive for one in kept):
            return kept
        _close_all(kept)
        target = self.device or default
        made = start_processes(source, target, count, self.worker_init_fn, self.multiprocessing_context, skip)
        if self._keeps_workers():
            weakref.finalize(self, _close_all, made)
        return made

    def _keep_processes(self, workers: Sequence[Any]) -> None:
        """Keep the processes of an iteration that has ended for the next one."""
        before, self._kept_workers = self._kept_workers, workers
        _close_all(before)

    def _add_wait(self, seconds: float) -> None:
        self.wait_seconds += seconds

    def _read_here(self, worker: LocalWorker, tasks: Iterator[Any]) -> Iterator[Any]:
        for task in tasks:
            begin = time.perf_counter()
            batch = worker.read(task)
            self._add_wait(time.perf_counter() - begin)
            if batch is END:
                return
            yield batch

    def _tasks(self, seed: int, epoch: int, last: str) -> Iterator[Any]:
        """The positions of each batch of the epoch, or of each item where there are no batches."""
        order = self._order()
        if hasattr(order, "set_epoch"):
            order.set_epoch(epoch)
        first: list[int] = []
        for positions in draw_positions(order, Generator(epoch_seed(seed, epoch, ORDER))):
            if last == "pad":
                first = first or list(positions)
                missing = (self.batch_size or 0) - len(positions)
                positions = [*positions, *(first[k % len(first)] for k in range(missing))]
            yield positions

    def __len__(self) -> int:
        """The number of batches."""
        if self.is_iterable:
            return count_batches(len(self.dataset), self.batch_size or 1, self.last)
        return len(self._order())


def _close_all(workers: Sequence[Any]) -> None:
    for one in workers:
        one.close()
