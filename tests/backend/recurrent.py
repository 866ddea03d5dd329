"""Recurrent cells for `weft.loop`, and layers of them with the weights of torch's."""

import torch

import weft


def lstm_step(w):
    def step(state, x):
        h, c = state
        i, f, g, o = (x + h @ w.T).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h, c), h

    return step


def gru_step(w, b):
    def step(h, x):
        hr, hz, hn = (h @ w.T + b).chunk(3, 1)
        xr, xz, xn = x.chunk(3, 1)
        z = (xz + hz).sigmoid()
        n = (xn + (xr + hr).sigmoid() * hn).tanh()
        h = (1 - z) * n + z * h
        return h, h

    return step


def rnn_step(w):
    def step(h, x):
        h = (x + h @ w.T).tanh()
        return h, h

    return step


def recurrent(kind, theirs, x, lengths=None, suffix="_l0", reverse=False):
    """One layer of torch's `theirs` as a loop: its weights as leaves, all outputs, and the last state."""
    leaves = {name: weft.tensor(p.detach().numpy(), requires_grad=True) for name, p in theirs.named_parameters()}
    wi, wh, bi, bh = [leaves[name + suffix] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    width = wh.shape[1]
    first = weft.zeros(x.shape[1], width)
    if kind == "lstm":
        inputs, step, init = x @ wi.T + (bi + bh), lstm_step(wh), (first, first)
    elif kind == "gru":
        inputs, step, init = x @ wi.T + bi, gru_step(wh, bh), first
    else:
        inputs, step, init = x @ wi.T + (bi + bh), rnn_step(wh), first
    if lengths is not None:
        inputs, step = (weft.arange(len(x)), inputs), masked(step, lengths)
    last, ys = weft.loop(step, init, inputs, reverse=reverse)
    return leaves, ys, last[0] if kind == "lstm" else last


def masked(step, lengths):
    """A step that leaves the state of a sequence alone once it has ended, and gives zeros from there on."""

    def wrapped(state, now):
        t, x = now
        new, y = step(state, x)
        going = (t < lengths).reshape(-1, 1)
        if isinstance(state, tuple):
            new = tuple(weft.where(going, a, b) for a, b in zip(new, state, strict=True))
        else:
            new = weft.where(going, new, state)
        return new, weft.where(going, y, 0.0)

    return wrapped


KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
SIZES = [(5, 3, 4, 6), (1, 2, 3, 4), (9, 16, 24, 32)]  # time, batch, input, hidden; the last one calls the library
