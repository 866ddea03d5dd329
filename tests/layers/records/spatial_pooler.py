"""Records of the spatial pooler, with a slow twin in NumPy that takes the same random numbers."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.checks import check_rule
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.records.temporal_memory import BINARY, ONE

_POOLER_STATE = {
    "potential": bool,
    "permanence": np.float32,
    "active_duty": np.float32,
    "overlap_duty": np.float32,
    "boost": np.float32,
}


class PoolerTwin:
    """The spatial pooler column by column, in float32."""

    def __init__(self, layer, state=None):
        state = layer.state_dict() if state is None else state
        self.potential, self.permanence, self.active_duty, self.overlap_duty, self.boost = (
            np.array(state[name], dtype) for name, dtype in _POOLER_STATE.items()
        )
        self.step = int(state["step"])
        self.layer = layer

    def columns(self, x):
        """The active columns, and those with enough overlap."""
        overlap = np.zeros(len(self.boost), np.float32)
        for column in range(len(overlap)):
            synapses = self.potential[column] & (self.permanence[column] >= np.float32(self.layer.connected))
            overlap[column] = (synapses & x).sum()
        is_enough = overlap >= max(1, self.layer.stimulus_threshold)
        best = sorted(np.flatnonzero(is_enough), key=lambda c: (-(self.boost[c] * overlap[c]), c))
        active = np.zeros(len(overlap), bool)
        active[best[: max(1, round(self.layer.sparsity * len(overlap)))]] = True
        return active, is_enough

    def learn(self, x):
        layer = self.layer
        active, is_enough = self.columns(x)
        for column in np.flatnonzero(active):
            for synapse in np.flatnonzero(self.potential[column]):
                change = np.float32(layer.perm_inc) if x[synapse] else -np.float32(layer.perm_dec)
                self._change(column, synapse, change)
        self.step += 1
        period = np.float32(min(self.step, layer.duty_period))
        self.active_duty = ((period - ONE) * self.active_duty + active) / period
        self.overlap_duty = ((period - ONE) * self.overlap_duty + is_enough) / period
        excess = self.active_duty - np.float32(layer.sparsity)
        # NumPy's exp differs in the last bit
        self.boost = weft.tensor(np.float32(-layer.boost_strength) * excess).exp().numpy()
        weak = self.overlap_duty < np.float32(0.001) * self.overlap_duty.max()
        for column in np.flatnonzero(weak):
            for synapse in np.flatnonzero(self.potential[column]):
                self._change(column, synapse, np.float32(layer.connected / 10.0))
        return active

    def _change(self, column, synapse, change):
        self.permanence[column, synapse] = np.clip(self.permanence[column, synapse] + change, np.float32(0.0), ONE)


def _pooler():
    """A pooler that has learned a little, so that columns differ in boost."""
    layer = nn.SpatialPooler(12, column_count=20, sparsity=0.2, boost_strength=2.0)
    layer.learn(weft.tensor(np.random.default_rng(0).random((6, 12)) < 0.4))
    return layer


def _pool(state, x):
    twin = PoolerTwin(_pooler(), state)
    return np.stack([twin.columns(row)[0] for row in x]).astype(np.float32)


def _ties_go_to_the_lower_index():
    layer = nn.SpatialPooler(6, column_count=10, sparsity=0.3, potential_pct=1.0)
    layer.permanence.fill_(0.5)
    assert layer(weft.ones(1, 6)).tolist() == [[1.0] * 3 + [0.0] * 7]
    layer.permanence[:4] = 0.0
    assert layer(weft.ones(1, 6)).tolist() == [[0.0] * 4 + [1.0] * 3 + [0.0] * 3]
    assert layer(weft.zeros(1, 6)).sum().item() == 0.0  # nothing overlaps


def _pooler_is_its_twin():
    """To the bit: permanences, duty cycles, boost and columns, eager and compiled, over rows of batches."""
    options = ({}, {"boost_strength": 3.0, "duty_period": 7, "stimulus_threshold": 2}, {"potential_pct": 0.15})
    for number, given in enumerate(options):
        weft.manual_seed(number)
        eager = nn.SpatialPooler(25, column_count=30, sparsity=0.1, perm_inc=0.07, perm_dec=0.02, **given)
        traced = nn.SpatialPooler(25, column_count=30, sparsity=0.1, perm_inc=0.07, perm_dec=0.02, **given)
        traced.load_state_dict(eager.state_dict())
        twin, step = PoolerTwin(eager), weft.compile(lambda x, traced=traced: traced.learn(x))
        random = np.random.default_rng(number)
        for _ in range(8):
            x = random.random((4, 25)) < 0.25
            x[0] = False
            expected = np.stack([twin.learn(row) for row in x])
            for found in (eager.learn(weft.tensor(x)), step(weft.tensor(x))):
                np.testing.assert_array_equal(found.numpy(), expected)
            for layer in (eager, traced):
                for name in _POOLER_STATE:
                    np.testing.assert_array_equal(getattr(layer, name).numpy(), getattr(twin, name), err_msg=name)
                assert layer.step.item() == twin.step
        assert step.retraces == []


def _first_synapses():
    weft.manual_seed(0)
    layer = nn.SpatialPooler(40, column_count=50, potential_pct=0.3, connected=0.2)
    potential, permanence = layer.potential.numpy(), layer.permanence.numpy()
    assert (potential.sum(1) == 12).all() and ((permanence >= np.float32(0.2)) & potential).sum(1).tolist() == [6] * 50
    assert permanence.min() == 0.0 and permanence.max() < 1 and (permanence[~potential] == 0).all()
    assert len({row.tobytes() for row in potential}) == 50
    reach = potential.sum(0)  # every input is among those of about 15 columns
    assert 4 < reach.min() and reach.max() < 27


def _sparse_and_stable():
    """Exactly k columns; a noisy copy of an input shares most of its columns, an unrelated one few; boosting evens the
    duty cycles."""
    random = np.random.default_rng(0)
    inputs = random.random((20, 60)) < 0.3
    spread = {}
    for boost in (0.0, 20.0):
        weft.manual_seed(0)
        layer = nn.SpatialPooler(60, column_count=100, sparsity=0.05, boost_strength=boost)
        step = weft.compile(lambda x, layer=layer: layer.learn(x))
        for _ in range(30):
            active = step(weft.tensor(inputs))
        assert (active.numpy().sum(1) == 5).all()
        spread[boost] = layer.active_duty.numpy().std()
        if boost == 0.0:
            noisy = inputs ^ (random.random(inputs.shape) < 0.03)
            clean, near = layer(weft.tensor(inputs)).numpy(), layer(weft.tensor(noisy)).numpy()
            same = (clean * near).sum(1).mean()
            other = np.mean([clean[i] @ clean[j] for i in range(20) for j in range(i)])
            assert same > 3.5 and other < 1.5, (same, other)
    assert spread[20.0] < 0.6 * spread[0.0], spread


def _pooler_eval():
    layer = _pooler().eval()
    before = {name: np.array(value) for name, value in layer.state_dict().items()}
    x = weft.tensor(np.random.default_rng(1).random((3, 12)) < 0.5)
    np.testing.assert_array_equal(layer.learn(x).numpy(), layer(x).numpy())
    for name, value in layer.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


RECORDS = [
    LayerRecord(
        name="SpatialPooler",
        make=_pooler,
        inputs=lambda draw: (draw.bools(5, 12),),
        oracle=of_numpy(_pool),
        traits=frozenset({"batch", "order"}),
        edges={"ties": Case(check=lambda layer, inputs: _ties_go_to_the_lower_index()), "nan": BINARY},
        differentiable=False,
        bf16="permanences are counted in steps that bfloat16 does not have",
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 11)), match=r"\(2, 11\).*\[B, 12\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer.learn(weft.ones(12)), match=r"\[B, 12\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.SpatialPooler(4, sparsity=0.0), match="sparsity=0.0", error=weft.RangeError),
            Bad(call=lambda layer: nn.SpatialPooler(0), match="input_size=0", error=weft.RangeError),
        ],
        checks={
            "twin": _pooler_is_its_twin,
            "first synapses": _first_synapses,
            "sparse and stable": _sparse_and_stable,
            "eval never learns": _pooler_eval,
            "a thousand steps": check_rule(_pooler, np.eye(2, 12)),
        },
    ),
]
