"""Records of the temporal memory, with a slow twin in NumPy that takes the same random numbers."""

import functools

import numpy as np

import weft
import weft.nn as nn
from tests.layers.checks import check_rule
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord

ONE = np.float32(1.0)


class MemoryTwin:
    """The temporal memory cell by cell, segment by segment, synapse by synapse."""

    def __init__(self, layer, state=None, rows=1):
        state = layer.state_dict() if state is None else state
        self.layer = layer
        self.presyn = np.array(state["presyn"], np.int64)
        self.permanence = np.array(state["permanence"], np.float32)
        self.used = np.array(state["used"], np.int64)
        self.step = int(state["step"])
        self.events = set()  # what happened at least once
        self.reset(rows)

    def reset(self, rows):
        cells, segments = self.used.shape
        self.active = np.zeros((rows, cells), bool)
        self.winner = np.zeros((rows, cells), bool)
        self.connected_count = np.zeros((rows, cells, segments), np.int64)
        self.potential_count = np.zeros((rows, cells, segments), np.int64)
        self.anomaly = np.zeros(rows, np.float32)

    def advance(self, columns, priority=None):
        """One step of all rows; with `priority` [rows, cells] it learns."""
        for row in range(len(columns)):
            self._advance_row(row, columns[row], None if priority is None else priority[row])
        return self.active.astype(np.float32)

    def _advance_row(self, row, columns, priority):
        layer, depth = self.layer, self.layer.cells_per_column
        active_before, winner_before = self.active[row].copy(), self.winner[row].copy()
        strong = self.connected_count[row] >= layer.activation_threshold
        matching = self.potential_count[row] >= layer.min_threshold
        active, winner = np.zeros_like(active_before), np.zeros_like(winner_before)
        learning, fresh, hits = [], [], 0
        for column in range(layer.column_count):
            cells = range(column * depth, (column + 1) * depth)
            predicted = [cell for cell in cells if strong[cell].any()]
            if not columns[column]:
                continue
            if predicted:
                hits += 1
                self.events.add("predicted")
                for cell in predicted:
                    active[cell] = winner[cell] = True
                    learning += [(cell, segment) for segment in np.flatnonzero(strong[cell])]
                continue
            active[list(cells)] = True
            matches = [(cell, segment) for cell in cells for segment in np.flatnonzero(matching[cell])]
            if matches:
                best = max(matches, key=lambda one: (self.potential_count[row][one], -one[0], -one[1]))
                self.events.add("matched")
                winner[best[0]] = True
                learning.append(best)
            else:
                cell = min(cells, key=lambda one: ((self.presyn[one] >= 0).any(-1).sum(), one))
                winner[cell] = True
                if winner_before.any():
                    fresh.append(cell)
        count = int(columns.sum())
        self.anomaly[row] = np.float32(count - hits) / np.float32(max(count, 1))
        if priority is not None:
            self._learn(row, columns, active_before, winner_before, matching, learning, fresh, priority)
        self.active[row], self.winner[row] = active, winner
        for cell, segment in np.ndindex(*self.used.shape):
            sources = self.presyn[cell, segment]
            here = np.array([source >= 0 and active[source] for source in sources])
            is_connected = self.permanence[cell, segment] >= np.float32(layer.connected)
            self.connected_count[row, cell, segment] = (here & is_connected).sum()
            self.potential_count[row, cell, segment] = here.sum()

    def _learn(self, row, columns, active, winner, matching, learning, fresh, priority):
        layer = self.layer
        self.step += 1
        made = [(cell, self._free_segment(cell)) for cell in fresh]
        for cell, segment in learning:
            for synapse, source in enumerate(self.presyn[cell, segment]):
                if source >= 0:
                    change = np.float32(layer.perm_inc) if active[source] else -np.float32(layer.perm_dec)
                    level = np.clip(self.permanence[cell, segment, synapse] + change, np.float32(0.0), ONE)
                    self.permanence[cell, segment, synapse] = level
        if layer.predicted_dec > 0:
            for cell, segment in zip(*np.nonzero(matching), strict=True):
                if not columns[cell // layer.cells_per_column]:
                    for synapse, source in enumerate(self.presyn[cell, segment]):
                        if source >= 0 and active[source]:
                            self.permanence[cell, segment, synapse] -= np.float32(layer.predicted_dec)
        dead = (self.presyn >= 0) & (self.permanence <= 0)
        self.events |= {"deleted"} if dead.any() else set()
        self.presyn[dead], self.permanence[dead] = -1, 0.0
        for one in made:
            self.events.add("segment replaced" if (self.presyn[one] >= 0).any() else "segment made")
            self.presyn[one], self.permanence[one] = -1, 0.0
        order = [cell for cell in np.argsort(np.where(winner, priority, 2.0), kind="stable") if winner[cell]]
        for one in learning:
            self._grow(one, layer.max_new_synapses - self.potential_count[row][one], order)
        for one in made:
            self._grow(one, layer.max_new_synapses, order)
        for one in (*learning, *made):
            self.used[one] = self.step

    def _free_segment(self, cell):
        """The first segment without synapses, else the one that learned longest ago."""
        exists = (self.presyn[cell] >= 0).any(-1)
        return min(
            range(len(exists)), key=lambda segment: (self.used[cell, segment] if exists[segment] else -1, segment)
        )

    def _grow(self, one, wanted, order):
        """New synapses to the first winners in `order` that are not connected: in empty places, then over weak ones."""
        new = [cell for cell in order if cell not in self.presyn[one]][: max(wanted, 0)]
        strength = np.where(self.presyn[one] >= 0, self.permanence[one], np.float32(-1.0))
        places = np.argsort(strength, kind="stable")
        for place, cell in zip(places, new, strict=False):
            self.events.add("synapse made" if self.presyn[one][place] < 0 else "synapse replaced")
            self.presyn[one][place], self.permanence[one][place] = cell, np.float32(self.layer.initial_perm)


MEMORY = {"cells_per_column": 3, "activation_threshold": 3, "min_threshold": 2, "max_new_synapses": 4}


def _sequences(random, rows, steps, columns, active):
    """[steps, rows, columns] with `active` columns each."""
    made = np.zeros((steps, rows, columns), bool)
    for t, row in np.ndindex(steps, rows):
        made[t, row, random.choice(columns, active, replace=False)] = True
    return made


@functools.cache
def _learned():
    """What a memory has learned of a sequence, by the twin."""
    random = np.random.default_rng(0)
    twin = MemoryTwin(nn.TemporalMemory(10, max_segments=2, max_synapses=6, **MEMORY))
    sequence = _sequences(np.random.default_rng(0), 1, 3, 10, 4)
    for _ in range(5):
        twin.reset(1)
        for columns in sequence:
            twin.advance(columns, random.random((1, 30)))
    assert {"predicted", "matched"} <= twin.events
    return {name: getattr(twin, name) for name in ("presyn", "permanence", "used", "step")}


def _memory():
    """A memory that has learned, before the first element of three sequences."""
    layer = nn.TemporalMemory(10, max_segments=2, max_synapses=6, **MEMORY)
    layer.load_state_dict({name: np.asarray(value) for name, value in _learned().items()})
    layer.reset(batch_size=3)
    return layer


def _step_from_rest(state, columns):
    """Nothing is expected: all cells of active columns."""
    return MemoryTwin(_memory(), state, len(columns)).advance(columns)


def _memory_is_its_twin():
    """To the bit: synapses, permanences, cells and anomaly, eager and compiled, with full segments and cells,
    punishment, and several sequences at once."""
    cases = (
        ({"max_segments": 2, "max_synapses": 5, "initial_perm": 0.45}, 1),
        ({"max_segments": 1, "max_synapses": 3, "predicted_dec": 0.1}, 1),
        (
            {
                "max_segments": 3,
                "max_synapses": 6,
                "predicted_dec": 0.02,
                "initial_perm": 0.45,
                "max_active_columns": 7,
            },
            2,
        ),
    )
    events = set()
    for number, (given, rows) in enumerate(cases):
        options = {**MEMORY, **given}
        eager, traced = nn.TemporalMemory(8, **options), nn.TemporalMemory(8, **options)
        for layer in (eager, traced):
            layer.reset(batch_size=rows)
        twin, step = MemoryTwin(eager, rows=rows), weft.compile(lambda x, traced=traced: traced.learn(x))
        random = np.random.default_rng(number)
        sequence = _sequences(random, rows, 5, 8, 4)
        for iteration in range(5):
            for t, columns in enumerate(sequence):
                seed = 100 * iteration + t
                noisy = columns if iteration % 3 else columns ^ (random.random(columns.shape) < 0.1)
                weft.manual_seed(seed)
                priority = weft.rand(rows, eager.cells).numpy()
                expected = twin.advance(noisy, priority)
                for layer, call in ((traced, step), (eager, eager.learn))[: 1 if number else 2]:
                    weft.manual_seed(seed)
                    np.testing.assert_array_equal(call(weft.tensor(noisy)).numpy(), expected)
                    for name in ("presyn", "permanence", "used", "winner", "connected_count", "potential_count"):
                        ours, theirs = getattr(layer, name).numpy(), getattr(twin, name)
                        np.testing.assert_array_equal(ours, theirs, err_msg=f"{name}, case {number}, step {seed}")
                    np.testing.assert_array_equal(layer.anomaly.numpy(), twin.anomaly)
            if iteration % 2:
                twin.reset(rows)
                eager.reset()
                traced.reset()
        assert step.retraces == []
        events |= twin.events
    wanted = {"predicted", "matched", "deleted", "segment made", "segment replaced", "synapse made", "synapse replaced"}
    assert events == wanted, wanted - events


def _contexts():
    """ABCD and XBCY in turns: the anomaly of all but the first elements goes to 0, B and C have other cells in either
    context, and what comes at the end follows from how it began."""
    for predicted_dec in (0.0, 0.04):
        _learn_contexts(predicted_dec)


def _learn_contexts(predicted_dec):
    weft.manual_seed(0)
    codes = {name: np.zeros((1, 30), bool) for name in "ABCDXY"}
    for number, code in enumerate(codes.values()):
        code[0, 5 * number : 5 * number + 5] = True
    memory = nn.TemporalMemory(
        30, cells_per_column=4, activation_threshold=4, min_threshold=3, max_new_synapses=6, max_segments=4,
        max_synapses=10, predicted_dec=predicted_dec,
    )  # fmt: skip
    step = weft.compile(lambda x: memory.learn(x))
    given = {name: weft.tensor(code) for name, code in codes.items()}
    history = []
    for _ in range(25):
        scores = []
        for word in ("ABCD", "XBCY"):
            memory.reset()
            for letter in word:
                step(given[letter])
                scores.append(memory.anomaly.item())
        history.append(scores)
    assert history[0] == [1.0] * 8
    assert [score for number, score in enumerate(history[-1]) if number % 4] == [0.0] * 6, history[-1]
    memory.eval()
    cells, expected = {}, {}
    before = memory.presyn.numpy().copy()
    for word in ("ABCD", "XBCY"):
        memory.reset()
        for letter in word:
            expected[word, letter] = memory.predictive_columns.numpy()[0]
            cells[word, letter] = memory.learn(given[letter]).numpy()[0] > 0
    np.testing.assert_array_equal(memory.presyn.numpy(), before)  # evaluation mode learns nothing
    for letter in "BC":
        one, other = cells["ABCD", letter], cells["XBCY", letter]
        assert one.sum() == other.sum() == 5 and not (one & other).any(), letter
    if predicted_dec:  # what was expected in vain is forgotten
        np.testing.assert_array_equal(expected["ABCD", "D"], codes["D"][0])
        np.testing.assert_array_equal(expected["XBCY", "Y"], codes["Y"][0])
    assert step.retraces == []


def _sequences_apart():
    """Rows of a batch have states of their own: without learning each is as if it were alone."""
    memory = _memory().eval()
    sequence = _sequences(np.random.default_rng(0), 3, 4, 10, 4)
    sequence[:, 1] = _sequences(np.random.default_rng(0), 1, 4, 10, 4)[:, 0]
    together = [memory(weft.tensor(columns)).numpy() for columns in sequence]
    for row in range(3):
        memory.reset(batch_size=1)
        alone = [memory(weft.tensor(columns[row : row + 1])).numpy()[0] for columns in sequence]
        for one, other in zip(together, alone, strict=True):
            np.testing.assert_array_equal(one[row], other)


BINARY = "the input is binary: NaN is not 0, and counts as active"

RECORDS = [
    LayerRecord(
        name="TemporalMemory",
        make=_memory,
        inputs=lambda draw: (_sequences(np.random.default_rng(0), 1, 1, 10, 4)[0].repeat(3, 0),),
        oracle=of_numpy(_step_from_rest),
        traits=frozenset({"batch", "order"}),
        edges={
            "ties": "the twin has them: winners among equal cells, places among equal synapses",
            "nan": BINARY,
        },
        differentiable=False,
        bf16="permanences are counted in steps that bfloat16 does not have",
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 9)), match=r"\(2, 9\).*\[B, 10\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.TemporalMemory(4, 0), match=r"\(4, 0", error=weft.RangeError),
            Bad(
                call=lambda layer: nn.TemporalMemory(4, 2, max_active_columns=2).learn(weft.ones(1, 4)),
                match="given the index 4.*extent 3",
                error=weft.IndexRangeError,
            ),
            Bad(
                call=lambda layer: weft.compile(layer.learn)(weft.ones(2, 10)),
                match=r"reset\(batch_size=2\)",
                error=weft.ShapeError,
            ),
        ],
        checks={
            "twin": _memory_is_its_twin,
            "contexts": _contexts,
            "sequences apart": _sequences_apart,
            "a thousand steps": check_rule(_memory, np.eye(3, 10)),
        },
    ),
]
