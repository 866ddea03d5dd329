"""Records of low-rank adapters: torch's layers plus the low-rank product."""

import numpy as np
import pytest
import torch.nn.functional as TF

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, to_torch
from tests.layers.record import Bad, LayerRecord


def with_torch(function):
    return of_numpy(lambda state, *inputs: function(to_torch(dict(state)), *to_torch(inputs)))


def linear(state, x):
    y = TF.linear(x, state["base.weight"], state["base.bias"])
    return y + 4.0 / 2 * (x @ state["lora_A"].T @ state["lora_B"].T)


def embedding(state, i):
    return TF.embedding(i, state["base.weight"]) + (state["lora_A"].T[i] @ state["lora_B"].T)


def randomize(model):
    """Give all adapters an effect: B starts as 0."""
    with weft.no_grad():
        for name, param in model.named_parameters():
            if name.endswith("lora_B"):
                param.copy_(weft.randn(*param.shape))
    return model


def starts_as_the_base():
    for base, made, x in (
        (nn.Linear(4, 3, activation="relu"), nn.LoRALinear, weft.randn(5, 4)),
        (nn.Embedding(6, 3, padding_idx=1), nn.LoRAEmbedding, weft.tensor([0, 1, 5])),
    ):
        expected = base(x).detach().numpy()
        layer = made(base, r=2, dropout=0.5)
        np.testing.assert_array_equal(layer(x).detach().numpy(), expected)
        assert not base.weight.requires_grad and layer.lora_A.requires_grad


def the_base_stays():
    """Training changes the adapters only, and the padding row of an embedding not at all."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4, padding_idx=1), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    model = nn.lora.add_lora(model, r=2, alpha=4.0)
    randomize(model)
    x = weft.tensor([[0, 1, 5], [2, 1, 1]])
    padding = model[0](weft.tensor([1])).detach().numpy()
    optimizer = weft.optim.Adam([param for param in model.parameters() if param.requires_grad], lr=0.05)

    @weft.compile
    def step():
        loss = ((model(x) - 1.0) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step().item() for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    after = {key: value.numpy() for key, value in model.state_dict().items()}
    for key, value in before.items():
        name, _, part = key.rpartition(".")
        np.testing.assert_array_equal(after[f"{name}.base.{part}"], value)
    np.testing.assert_array_equal(model[0](weft.tensor([1])).detach().numpy(), padding)


def merged_is_equal():
    """Merged and unmerged models give equal outputs, in eager mode and in one compiled function."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).eval()
    model = randomize(nn.lora.add_lora(model, r=3, alpha=6.0, dropout=0.3)).eval()
    x = weft.tensor([[0, 1, 5], [2, 1, 1]])
    run = weft.compile(lambda x: model(x))
    weights = [param.detach().numpy().copy() for param in model.parameters()]
    expected, compiled = model(x).detach().numpy(), run(x).detach().numpy()
    np.testing.assert_allclose(compiled, expected, rtol=1e-6, atol=1e-6)
    nn.lora.merge(nn.lora.merge(model))  # the second time nothing happens
    assert all(module.merged for module in model if isinstance(module, (nn.LoRALinear, nn.LoRAEmbedding)))
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    nn.lora.unmerge(nn.lora.unmerge(model))
    np.testing.assert_allclose(run(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    for param, value in zip(model.parameters(), weights, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), value, rtol=1e-4, atol=1e-5)


def tied_weights_are_untied_by_merging():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.table(x))

    weft.manual_seed(0)
    model = randomize(nn.lora.add_lora(Tied(), r=2))
    x = weft.tensor([0, 3, 5])
    expected = model(x).detach().numpy()
    nn.lora.merge(model)
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def targets():
    def make():
        return nn.ModuleDict({
            "a": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
            "b": nn.MultiheadAttention(4, 2),
            "c": nn.Embedding(5, 2),
        })  # fmt: skip

    def adapted(target):
        model = nn.lora.add_lora(make(), r=1, target=target)
        kinds = (nn.LoRALinear, nn.LoRAEmbedding)
        return [path for path, module in model.named_modules() if isinstance(module, kinds)]

    assert adapted(None) == ["a.0", "a.1", "b.out_proj", "c"]
    assert adapted("a.1") == ["a.1"] and adapted("1") == ["a.1"] and adapted(["a.*", "c"]) == ["a.0", "a.1", "c"]
    assert adapted(lambda path, module: isinstance(module, nn.Embedding)) == ["c"]
    model = nn.lora.add_lora(make(), r=1, target="a.0")
    nn.lora.add_lora(model, r=2, target="a.1")  # a second call leaves the first one's adapters
    learning = [name for name, param in model.named_parameters() if param.requires_grad]
    assert learning == ["a.0.lora_A", "a.0.lora_B", "a.1.lora_A", "a.1.lora_B"]
    shared = nn.Linear(3, 3)
    twice = nn.lora.add_lora(nn.Sequential(shared, shared), r=1)
    assert twice[0] is twice[1]
    assert isinstance(nn.lora.add_lora(nn.Linear(2, 2), r=1), nn.LoRALinear)


def attention_reads_the_adapted_weight():
    weft.manual_seed(0)
    attention = nn.MultiheadAttention(4, 2)
    x = weft.randn(3, 1, 4)
    before = attention(x, x, x)[0].detach().numpy()
    model = nn.lora.add_lora(attention, r=2)
    np.testing.assert_allclose(model(x, x, x)[0].detach().numpy(), before, rtol=1e-6, atol=1e-6)
    randomize(model)
    expected = model(x, x, x)[0].detach().numpy()
    assert np.abs(expected - before).max() > 1e-3
    model(x, x, x)[0].sum().backward()
    assert model.out_proj.lora_B.grad is not None and model.out_proj.base.weight.grad is None
    nn.lora.merge(model)
    np.testing.assert_allclose(model(x, x, x)[0].detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def adapters_are_saved_alone():
    weft.manual_seed(0)
    make = lambda: nn.lora.add_lora(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), r=2)  # noqa: E731
    first, second = randomize(make()), make()
    second[0].base.load_state_dict(first[0].base.state_dict())
    second[1].base.load_state_dict(first[1].base.state_dict())
    state = nn.lora.lora_state_dict(first)
    assert list(state) == ["0.lora_A", "0.lora_B", "1.lora_A", "1.lora_B"]
    assert not second.load_state_dict(state, strict=False).unexpected_keys
    x = weft.randn(5, 4)
    np.testing.assert_array_equal(first(x).detach().numpy(), second(x).detach().numpy())


def dropout_acts_on_the_adapter_only():
    weft.manual_seed(0)
    layer = randomize(nn.LoRALinear(nn.Linear(4, 3), r=2, dropout=1.0))
    x = weft.randn(5, 4)
    np.testing.assert_allclose(layer(x).detach().numpy(), layer.base(x).detach().numpy(), rtol=1e-6, atol=1e-6)


def hooks_of_the_base_run():
    """The base is called, merged or not."""
    layer, seen = nn.LoRALinear(nn.Linear(4, 3), r=2), []
    layer.base.register_forward_hook(lambda module, args, output: seen.append(1) or output + 1.0)
    x = weft.randn(5, 4)
    before = layer(x).detach().numpy()
    layer.merge()
    np.testing.assert_allclose(layer(x).detach().numpy(), before, rtol=1e-5, atol=1e-6)
    assert len(seen) == 2


def computed_weights_are_not_merged():
    """What is added to a weight that a parametrization computes would be lost: nothing is merged."""
    for make in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm):
        model = nn.Sequential(nn.Linear(4, 4), make(nn.Linear(4, 3))).eval()
        model = randomize(nn.lora.add_lora(model, r=2)).eval()
        x = weft.randn(5, 4)
        before = model(x).detach().numpy()
        with pytest.raises(weft.GraphError, match=r"weight is computed by a parametrization.*remove_parametrizations"):
            nn.lora.merge(model)
        assert not model[0].merged and not model[1].merged
        np.testing.assert_array_equal(model(x).detach().numpy(), before)
        nn.utils.parametrize.remove_parametrizations(model[1].base, "weight")
        nn.lora.merge(model)
        np.testing.assert_allclose(model(x).detach().numpy(), before, rtol=1e-4, atol=1e-5)


RECORDS = [
    LayerRecord(
        name="LoRALinear",
        make=lambda: nn.LoRALinear(nn.Linear(4, 3), r=2, alpha=4.0),
        inputs=lambda draw: (draw.normal(5, 4),),
        oracle=with_torch(linear),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match="3"),
            Bad(call=lambda layer: type(layer)(nn.Embedding(3, 2)), match="a Embedding as base.*a Linear"),
            Bad(call=lambda layer: type(layer)(nn.Linear(3, 2), r=0), match="r=0"),
            Bad(call=lambda layer: nn.lora.add_lora(nn.ReLU()), match="names no Linear or Embedding of ReLU"),
        ],
        checks={
            "starts as the base": starts_as_the_base,
            "the base stays": the_base_stays,
            "merging": merged_is_equal,
            "tied weights": tied_weights_are_untied_by_merging,
            "targets": targets,
            "attention": attention_reads_the_adapted_weight,
            "saving": adapters_are_saved_alone,
            "dropout": dropout_acts_on_the_adapter_only,
            "hooks of the base": hooks_of_the_base_run,
            "computed weights": computed_weights_are_not_merged,
        },
    ),
    LayerRecord(
        name="LoRAEmbedding",
        make=lambda: nn.LoRAEmbedding(nn.Embedding(6, 3), r=2),
        inputs=lambda draw: (np.array([[1, 5, 1], [0, 2, 4]]),),
        oracle=with_torch(embedding),
        bad=[
            Bad(call=lambda layer: layer(weft.tensor([6])), match="6", error=IndexError),
            Bad(call=lambda layer: type(layer)(nn.Linear(3, 2)), match="a Linear as base.*a Embedding"),
        ],
    ),
]
