"""Training as torch does it: equal initial weights, batches and hyper-parameters give equal losses, step by step."""

import functools

import numpy as np
import pytest
import torch

import weft
from tests.backend import train_models as models
from weft.data import digits
from weft.train import Callback, Trainer

pytestmark = pytest.mark.backend


class Losses(Callback):
    """The loss of each step, kept on the device until the end."""

    def __init__(self):
        self.values = []

    def on_batch_end(self, trainer, batch, metrics):
        self.values.append(trainer.meters.loss.last().clone())


def digits_batches(steps):
    x, y = digits.load("train")
    order = np.random.default_rng(1).permutation(len(x))
    return [
        (x[rows], y[rows]) for rows in np.array_split(order, len(x) // 32)[: min(steps, len(x) // 32)]
    ]  # at most 45 of them: later epochs repeat them


def text_batches(steps):
    windows = models.text_windows(8 * min(steps, 20), 24)
    return [(part[:, :-1], part[:, 1:]) for part in np.split(windows, len(windows) // 8)]


def make_case(name, dtype, steps):
    """(torch model, weft model, batches, optimizer's name and arguments) with equal weights."""
    rng = np.random.default_rng(0)
    if name == "digits CNN":
        batches, make = digits_batches(steps), models.digits_cnn
        pair, rates = [make(torch), make(weft)], ("AdamW", {"lr": 2e-3, "weight_decay": 1e-2})
    elif name == "character GPT":
        batches = text_batches(steps)
        pair, rates = [models.char_gpt(torch), models.char_gpt(weft)], ("AdamW", {"lr": 1e-3})
    else:
        adjacency, labels = models.karate()
        batches = [(np.eye(34), labels)]
        pair = [models.gcn(torch, torch.tensor(adjacency), 34), models.gcn(weft, weft.tensor(adjacency), 34)]
        rates = ("Adam", {"lr": 1e-2, "weight_decay": 5e-4})
    theirs, ours = pair[0].to(getattr(torch, dtype)), pair[1].to(getattr(weft, dtype))
    for value in theirs.parameters():
        if value.ndim > 1:
            scale = 1.0 / np.sqrt(value[0].numel())
            value.data = torch.tensor(rng.uniform(-scale, scale, value.shape), dtype=value.dtype)
    ours.load_state_dict(theirs.state_dict())
    cast = np.dtype(dtype)
    batches = [(x.astype(cast) if x.dtype.kind == "f" else x, y) for x, y in batches]
    return theirs, ours, batches, rates


def torch_losses(model, batches, rates, steps, clip):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # they would wait for each other where the machine does other things
    optimizer = getattr(torch.optim, rates[0])(model.parameters(), **rates[1])
    criterion, losses = torch.nn.CrossEntropyLoss(), []
    for step in range(steps):
        x, y = (torch.tensor(part) for part in batches[step % len(batches)])
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    return losses


@pytest.mark.parametrize("name", ["digits CNN", "character GPT", "GCN"])
@pytest.mark.parametrize(("dtype", "steps", "error"), [("float64", 100, 1e-8), ("float32", 10, 1e-5)])
def test_losses_are_those_of_torch(on_each_device, name, dtype, steps, error):
    theirs, ours, batches, rates = make_case(name, dtype, steps)
    expected = torch_losses(theirs, batches, rates, steps, clip=1.0)
    losses = Losses()
    optimizer = getattr(weft.optim, rates[0])(ours.parameters(), **rates[1])
    trainer = Trainer(
        ours, weft.nn.CrossEntropyLoss(), optimizer, clip_norm=1.0, callbacks=[losses], device=on_each_device
    )
    trainer.fit(batches, epochs=steps, max_steps=steps)
    found = weft.stack(losses.values).tolist()
    assert len(found) == steps and max(abs(a - b) for a, b in zip(found, expected, strict=True)) < error
    assert found[-1] < found[0]


RATES = ("AdamW", {"lr": 2e-3, "weight_decay": 1e-2})


@functools.cache
def torch_ends():
    """Initial weights and the mean loss of the second epoch, for five seeds."""
    found = []
    for seed in range(5):
        torch.manual_seed(seed)
        model = models.digits_cnn(torch)
        start = {name: value.clone() for name, value in model.state_dict().items()}
        found.append((start, np.mean(torch_losses(model, digits_batches(45), RATES, 90, clip=1.0)[45:])))
    return found


@pytest.mark.parametrize(("precision", "seeds"), [("fp32", 3), ("bf16", 2), ("fp16", 2)])
def test_the_final_loss_lies_within_the_spread_of_seeds(on_each_device, precision, seeds):
    """Rounding takes the two apart; where they end is as near as other seeds bring one of them, in 16 bits, too."""
    ends, model = [], models.digits_cnn(weft)
    for start, _ in torch_ends()[:seeds]:
        model.load_state_dict(start)
        optimizer = weft.optim.AdamW(model.parameters(), **RATES[1])
        trainer = Trainer(
            model, weft.nn.CrossEntropyLoss(), optimizer, clip_norm=1.0, device=on_each_device, precision=precision
        )
        ends.append(trainer.fit(digits_batches(45), epochs=2)["loss"][1])
    low, high = min(end for _, end in torch_ends()), max(end for _, end in torch_ends())
    margin = (0.05 if precision == "fp32" else 0.2) * (high - low)
    assert all(low - margin <= end <= high + margin for end in ends), (ends, low, high)


def change_nothing(x):
    return x


def with_history(x):
    return x.clone().requires_grad_() * 1.0


def transposed(x):
    return x.t().contiguous().t()


def negative_view(x):
    return torch._neg_view(-x)


@pytest.mark.parametrize("change", [change_nothing, with_history, torch.nn.Parameter, transposed, negative_view])
@pytest.mark.parametrize("kind", ["list", "dataset", "torch dataset", "torch loader", "predict"])
def test_batches_of_torch_tensors(on_each_device, change, kind):
    """With a history, in another order or as a view: what is computed is that of plain arrays."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)
    given, target = change(torch.tensor(x)), torch.tensor(y)

    def run(inputs, labels):
        weft.manual_seed(0)
        model = weft.nn.Linear(3, 1)
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
        trainer = weft.train.Trainer(model, weft.nn.MSELoss(), optimizer, device=on_each_device)
        if kind == "predict":
            return trainer.predict(inputs).tolist()
        data = [(inputs, labels)]
        if kind == "dataset":
            data = weft.data.DataLoader(weft.data.TensorDataset(inputs, labels), batch_size=4)
        elif kind != "list" and isinstance(inputs, torch.Tensor):
            data = torch.utils.data.TensorDataset(inputs.detach() if kind == "torch loader" else inputs, labels)
            make = weft.data.DataLoader if kind == "torch dataset" else torch.utils.data.DataLoader
            data = make(data, batch_size=4)
        elif kind != "list":
            data = weft.data.DataLoader(weft.data.TensorDataset(inputs, labels), batch_size=4)
        return trainer.fit(data, epochs=2)["loss"]

    assert run(given, target) == run(weft.tensor(x), weft.tensor(y))


def test_torch_tensors_of_other_dtypes():
    """bfloat16 comes as it is; what has no values says so; a tensor alone is no data to train on."""
    model = weft.nn.Linear(3, 1).to(weft.bfloat16)
    trainer = weft.train.Trainer(model, weft.nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), device="cpu")
    x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    assert trainer.predict(x).dtype is weft.bfloat16
    assert len(trainer.fit([(x, torch.ones(2, 1, dtype=torch.bfloat16))], epochs=1)["loss"]) == 1
    with pytest.raises(weft.WeftError, match=r"a torch tensor of torch\.float32 on meta.*Fix: convert it"):
        trainer.fit([(torch.ones(2, 3, device="meta"), torch.ones(2, 1))], epochs=2)
    with pytest.raises(weft.WeftError, match="Trainer: given data of type Tensor; expected a DataLoader"):
        trainer.fit(x, epochs=1)
