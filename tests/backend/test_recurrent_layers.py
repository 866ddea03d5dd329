"""Recurrent layers beside torch's: all gradients, packed sequences, states between calls, plans."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from torch.nn.utils import rnn as their_rnn

import weft
import weft.nn as nn
from tests.backend.compiling import numbers
from weft.nn.utils import rnn as our_rnn

pytestmark = pytest.mark.usefixtures("on_each_device")

KINDS = ["RNN", "LSTM", "GRU"]
T, B, WIDTH, HIDDEN = 6, 4, 3, 5
DIRECTIONS = {"num_layers": 2, "bidirectional": True}


@pytest.fixture(autouse=True)
def one_torch_thread():
    """Its threads wait for each other at every step."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def pair(kind, *sizes, **options):
    """Our layer and torch's, in float64, with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(*sizes, **options).double()
    ours = getattr(nn, kind)(*sizes, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def draw(*shape, seed=0):
    value = np.random.default_rng(seed).normal(size=shape)
    return weft.tensor(value, requires_grad=True), torch.tensor(value, requires_grad=True)


def states(kind, layers, batch, hidden, size=None):
    ours, theirs = zip(draw(layers, batch, size or hidden, seed=1), draw(layers, batch, hidden, seed=2), strict=True)
    return (ours, theirs) if kind == "LSTM" else (ours[0], theirs[0])


def leaves(value):
    return [value] if not isinstance(value, (tuple, list)) else [leaf for one in value for leaf in leaves(one)]


def compare(ours, theirs, tolerance=1e-10):
    assert len(leaves(ours)) == len(leaves(theirs))
    for one, other in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), rtol=tolerance, atol=tolerance)


def loss_of(y, state):
    """A number to which every output and state contributes differently."""
    total = sum((k + 1) * (one**2).sum() + one.sum() for k, one in enumerate(leaves(state)))
    return total + (y**3).sum() + (y * 0.7).sum()


def compare_gradients(ours, theirs, points):
    for (name, one), (other_name, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other_name
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-10, err_msg=name)
    compare([one.grad for one, _ in points], [other.grad for _, other in points], 1e-9)


# ---- values and all gradients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "LSTM with projections"])
@pytest.mark.parametrize("lengths", [[2, 6, 1, 4], [6, 6, 6, 6], None, [1, 1, 1, 1]])
def test_two_layers_in_two_directions_with_all_gradients(kind, lengths):
    options = DIRECTIONS | ({"proj_size": 2} if "projections" in kind else {})
    kind = kind.split()[0]
    ours, theirs = pair(kind, WIDTH, HIDDEN, **options)
    x, their_x = draw(T, B, WIDTH)
    hx, their_hx = states(kind, 4, B, HIDDEN, options.get("proj_size"))
    y, state = ours(x, hx, lengths=lengths)
    if lengths is None:
        z, their_state = theirs(their_x, their_hx)
    else:
        packed = their_rnn.pack_padded_sequence(their_x, torch.tensor(lengths), enforce_sorted=False)
        z, their_state = theirs(packed, their_hx)
        z, _ = their_rnn.pad_packed_sequence(z, total_length=T)
    compare((y, state), (z, their_state))
    loss_of(y, state).backward()
    loss_of(z, their_state).backward()
    compare_gradients(ours, theirs, [(x, their_x), *zip(leaves(hx), leaves(their_hx), strict=True)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences(kind, enforce_sorted):
    lengths = [6, 4, 4, 1] if enforce_sorted else [4, 1, 6, 4]
    ours, theirs = pair(kind, WIDTH, HIDDEN, **DIRECTIONS)
    x, their_x = draw(T, B, WIDTH)
    hx, their_hx = states(kind, 4, B, HIDDEN)
    packed = our_rnn.pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
    their_packed = their_rnn.pack_padded_sequence(their_x, torch.tensor(lengths), enforce_sorted=enforce_sorted)
    y, state = ours(packed, hx)
    z, their_state = theirs(their_packed, their_hx)
    assert isinstance(y, our_rnn.PackedSequence)
    compare((y.data, y.batch_sizes, state), (z.data, z.batch_sizes, their_state))
    compare(our_rnn.pad_packed_sequence(y), their_rnn.pad_packed_sequence(z))
    loss_of(y.data, state).backward()
    loss_of(z.data, their_state).backward()
    compare_gradients(ours, theirs, [(x, their_x), *zip(leaves(hx), leaves(their_hx), strict=True)])
    compare(ours(packed)[1], theirs(their_packed)[1])  # without first states


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind):
    ours, theirs = pair(kind, WIDTH, HIDDEN)
    x, their_x = draw(T, B, WIDTH)
    for library, layer, given in ((weft, ours, x), (torch, theirs, their_x)):
        (slope,) = library.autograd.grad((layer(given)[0] ** 2).sum(), [given], create_graph=True)
        (slope**2).sum().backward()
    compare_gradients(ours, theirs, [(x, their_x)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("time", "batch"), [(1, 1), (1, 3), (4, 1), (3, 0)])
def test_small_sizes(kind, time, batch):
    ours, theirs = pair(kind, WIDTH, HIDDEN, **DIRECTIONS)
    x, their_x = draw(time, batch, WIDTH)
    (y, state), (z, their_state) = ours(x), theirs(their_x)
    compare((y, state), (z, their_state))
    loss_of(y, state).backward()
    loss_of(z, their_state).backward()
    compare_gradients(ours, theirs, [(x, their_x)])


@pytest.mark.parametrize("kind", KINDS)
def test_500_steps_in_float32(kind):
    ours, theirs = pair(kind, WIDTH, HIDDEN)
    ours = ours.float()
    x, their_x = draw(500, 2, WIDTH)
    (y, state), (z, their_state) = ours(x.float(), lengths=[500, 321]), theirs(their_x)
    np.testing.assert_allclose(y[:, 0].detach().numpy(), z[:, 0].detach().numpy(), rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(y[:321, 1].detach().numpy(), z[:321, 1].detach().numpy(), rtol=1e-4, atol=2e-6)
    last = leaves(state)[0][0, 1].detach().numpy()
    np.testing.assert_array_equal(last, y[320, 1].detach().numpy())
    y.sum().backward()
    (z[:, 0].sum() + z[:321, 1].sum()).backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        scale = other.grad.abs().max().item()
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=2e-5 * scale)
    assert len(leaves(their_state)) == len(leaves(state))


@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_with_states(kind):
    ours, theirs = pair(kind, WIDTH, HIDDEN, batch_first=True, **DIRECTIONS)
    x, their_x = draw(T, WIDTH)
    hx, their_hx = states(kind, 4, 1, HIDDEN)
    first = [one[:, 0] for one in leaves(hx)]
    their_first = [one[:, 0] for one in leaves(their_hx)]
    found = ours(x, tuple(first) if kind == "LSTM" else first[0])
    compare(found, theirs(their_x, tuple(their_first) if kind == "LSTM" else their_first[0]))
    assert found[0].shape == (T, 2 * HIDDEN)


# ---- what a PyTorch program reads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, "RNNCell", "LSTMCell", "GRUCell"])
def test_arguments_are_those_of_torch(kind):
    ours = list(inspect.signature(getattr(nn, kind)).parameters.values())
    base = [*inspect.signature(torch.nn.RNNBase).parameters.values()][1:]
    if kind.endswith("Cell"):
        theirs = list(inspect.signature(getattr(torch.nn, kind)).parameters.values())
    else:  # torch's own are (*args, **kwargs): those of the base class, and `nonlinearity` fourth
        theirs = [one for one in base if one.name != "proj_size" or kind == "LSTM"]
        if kind == "RNN":
            theirs.insert(3, next(one for one in ours if one.name == "nonlinearity"))
    assert [(one.name, one.default) for one in ours] == [(one.name, one.default) for one in theirs]


def test_names_weights_and_text():
    ours, theirs = pair("LSTM", WIDTH, HIDDEN, 2, batch_first=True, dropout=0.25, bidirectional=True, proj_size=2)
    assert repr(ours) == repr(theirs)
    assert repr(nn.RNNCell(2, 3, False, "relu")) == repr(torch.nn.RNNCell(2, 3, False, "relu"))
    assert [len(one) for one in ours.all_weights] == [len(one) for one in theirs.all_weights]
    compare(ours.all_weights, theirs.all_weights)
    assert ours.flatten_parameters() is None
    assert ours.all_weights[1][0] is ours.weight_ih_l0_reverse
    assert nn.RNN(2, 3, 1, "relu").mode == torch.nn.RNN(2, 3, 1, "relu").mode == "RNN_RELU"
    assert list(nn.RNNBase("GRU", 2, 3).state_dict()) == list(torch.nn.GRU(2, 3).state_dict())


def test_dropout_of_one_layer_warns():
    with pytest.warns(UserWarning, match="acts between layers"):
        nn.LSTM(2, 3, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.LSTM(2, 3, 2, dropout=0.5)


def test_wrong_modes_and_projections():
    with pytest.raises(weft.RangeError, match="nonlinearity='sin'"):
        nn.RNN(2, 3, 1, "sin")
    with pytest.raises(weft.RangeError, match="proj_size=3 and hidden_size=3"):
        nn.LSTM(2, 3, proj_size=3)
    with pytest.raises(weft.RangeError, match="one of RNN_TANH"):
        nn.RNNBase("lstm", 2, 3)
    with pytest.raises(TypeError):
        nn.GRU(2, 3, proj_size=1)
    packed = our_rnn.pack_padded_sequence(weft.ones(3, 2, 2), [3, 1])
    with pytest.raises(weft.ShapeError, match="one of them"):
        nn.GRU(2, 3)(packed, lengths=[3, 1])
    with pytest.raises(weft.ShapeError, match=r"a pair \(h, c\)"):
        nn.LSTM(2, 3)(weft.ones(3, 1, 2), (weft.ones(1, 1, 3),))


def test_a_path_in_a_model_is_named():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.ModuleList([nn.LSTM(3, 4)])

        def forward(self, x):
            return self.encoder[0](x)[0]

    with pytest.raises(weft.ShapeError, match=r"encoder\.0 \(LSTM\(3, 4\)\).*input_size = 3"):
        Tagger()(weft.ones(2, 2, 5))


# ---- states between calls -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compiled", [False, True])
def test_states_are_carried_from_call_to_call(kind, compiled):
    """Truncated backpropagation: each call goes on from the last one's states, without its gradient."""
    ours, theirs = pair(kind, WIDTH, HIDDEN, num_layers=2)
    sgd, their_sgd = weft.optim.SGD(ours.parameters(), lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1)

    def step(x, *given):
        y, state = ours(x, given if kind == "LSTM" else given[0])
        loss = (y**2).mean()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        return loss, [one.detach() for one in leaves(state)]

    run = weft.compile(step) if compiled else step
    carried = [weft.zeros(2, B, HIDDEN, dtype=weft.float64) for _ in range(2 if kind == "LSTM" else 1)]
    their_state = None
    for iteration in range(5):
        x, their_x = draw(T, B, WIDTH, seed=iteration)
        loss, carried = run(x.detach(), *carried)
        z, their_state = theirs(their_x.detach(), their_state)
        expected = (z**2).mean()
        their_sgd.zero_grad()
        expected.backward()
        their_sgd.step()
        their_state = tuple(one.detach() for one in their_state) if kind == "LSTM" else their_state.detach()
        assert abs(loss.item() - expected.item()) < 1e-12
    compare(carried, leaves(their_state))
    compare(list(ours.parameters()), list(theirs.parameters()))
    assert not compiled or run.retraces == []


def test_a_model_that_keeps_its_state_in_a_buffer():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(WIDTH, HIDDEN)
            self.state = nn.Buffer(weft.zeros(1, 2, HIDDEN))

        def forward(self, x):
            y, state = self.gru(x, self.state)
            self.state = state.detach()
            return y

    weft.manual_seed(0)
    reader, x = Reader(), weft.tensor(numbers(8, 2, WIDTH))
    whole = reader.gru(x)[0].detach().numpy()
    step = weft.compile(lambda x: reader(x).detach())
    pieces = [step(x[k : k + 2].contiguous()).numpy() for k in range(0, 8, 2)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=1e-5, atol=1e-6)
    assert step.retraces == []


def test_lengths_of_a_compiled_function_may_change():
    ours, theirs = pair("LSTM", WIDTH, HIDDEN, **DIRECTIONS)
    x, their_x = draw(T, B, WIDTH)
    x = x.detach()

    @weft.compile
    def step(x, lengths):
        y, (h, c) = ours(x, lengths=lengths)
        return y, h, c

    for lengths in ([2, 6, 1, 4], [6, 6, 6, 6], [1, 2, 3, 4]):
        packed = their_rnn.pack_padded_sequence(their_x, torch.tensor(lengths), enforce_sorted=False)
        z, their_state = theirs(packed)
        compare(step(x, weft.tensor(lengths)), (their_rnn.pad_packed_sequence(z, total_length=T)[0], *their_state))
    assert step.retraces == []
    y, h, _ = step(x, weft.tensor([0, 6, 9, 1]))  # documented: 0 leaves the first state, beyond T is T
    assert not y[:, 0].numpy().any() and not h[:, 0].numpy().any()
    with pytest.raises(weft.DTypeError, match="integers"):
        step(x, weft.tensor([2.0, 6.0, 1.0, 4.0]))
    with pytest.raises(weft.ShapeError, match="one for each of 4"):
        step(x, weft.tensor([2, 6, 1]))


def test_packed_inside_a_compiled_function():
    ours, _ = pair("GRU", WIDTH, HIDDEN)
    x = draw(T, B, WIDTH)[0].detach()

    def step(x):
        y, h = ours(our_rnn.pack_padded_sequence(x, [4, 1, 6, 4], enforce_sorted=False))
        return our_rnn.pad_packed_sequence(y)[0], h

    compare(weft.compile(step)(x), step(x), 1e-12)


def test_a_layer_on_a_symbol():
    x = nn.Input((T, WIDTH))
    layer = nn.LSTM(WIDTH, HIDDEN, batch_first=True)
    y, (h, _) = layer(x)
    model = nn.Model(x, [y, h])
    value = weft.tensor(numbers(2, T, WIDTH))
    expected = layer(value)
    compare(model(value), [expected[0], expected[1][0]], 1e-7)
