"""Low-rank adapters: a frozen layer plus a small trainable change of its weight (Hu et al., "LoRA", 2021).

`add_lora(model)` puts adapters on the Linear and Embedding layers of a model and freezes everything else;
`merge(model)` adds the changes to the weights and `unmerge(model)` takes them out again; `lora_state_dict(model)` has
the adapters only.
"""

from __future__ import annotations

import abc
import fnmatch
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import DTypeError, GraphError, RangeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.dropout import Dropout
from weft.nn.basic.embedding import Embedding
from weft.nn.basic.linear import Linear
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer

Target = str | Iterable[str] | Callable[[str, Module], bool] | None


class _Adapter(Module, abc.ABC):
    """What both adapters share: the frozen layer, A [r, inputs] and B [outputs, r]."""

    def _set_adapter(self, base: Module, kind: type, inputs: int, outputs: int, r: int, alpha: float | None) -> None:
        who = type(self).__name__
        if not isinstance(base, kind):
            raise problem(DTypeError, who, f"a {type(base).__name__} as base", f"a {kind.__name__}")
        if r < 1:
            raise problem(RangeError, who, f"r={r}", "a rank of at least 1")
        self.base = base.requires_grad_(False)
        self.r, self.alpha = r, float(r if alpha is None else alpha)
        self.scaling, self.merged = self.alpha / r, False
        like: dict[str, Any] = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.lora_A = Parameter(empty(r, inputs, **like))
        self.lora_B = Parameter(empty(outputs, r, **like))
        self.reset_parameters()

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Draw A again and set B to 0: the layer starts as its base."""

    @abc.abstractmethod
    def delta(self) -> Tensor:
        """The change of the weight, in the weight's shape."""

    @property
    def weight(self) -> Tensor:
        """The weight with the change, for layers that read it instead of calling (MultiheadAttention.out_proj)."""
        return self.base.weight if self.merged else self.base.weight + self.delta()

    def merge(self) -> None:
        """Add the change to the weight of the base: calls then cost what the base costs."""
        self._fold(1.0, True)

    def unmerge(self) -> None:
        """Take the change out of the weight of the base."""
        self._fold(-1.0, False)

    def _fold(self, sign: float, merged: bool) -> None:
        if self.merged is not merged:
            self._check_stored()
            with no_grad():
                self.base.weight.add_(self.delta(), alpha=sign)
            self.merged = merged

    def _check_stored(self) -> None:
        """Refuse a weight that is computed at every use, by a parametrization: what is added to it would be lost."""
        if "weight" not in self.base._parameters and "weight" not in self.base._buffers:
            given = f"a {type(self.base).__name__} whose weight is computed by a parametrization"
            fix = "call remove_parametrizations(base, 'weight'), or leave the adapter unmerged"
            raise problem(GraphError, f"{type(self).__name__}.merge", given, "a weight that is stored", fix)

    def extra_repr(self) -> str:
        return f"r={self.r}, alpha={self.alpha}" + (", merged" if self.merged else "")


@layer("", aliases=("LoRA",), oracle="torch: the Linear plus (alpha/r) B A x")
class LoRALinear(_Adapter):
    """y = W x + b + (alpha/r) B A drop(x), W and b frozen; an activation of the base comes last.

    Shape: as the base, a Linear [out, in]; lora_A [r, in] starts as in Linear, lora_B [out, r] as 0; alpha is r unless
    given.

    >>> base = weft.nn.Linear(3, 2)
    >>> layer = weft.nn.LoRALinear(base, r=1)
    >>> [name for name, param in layer.named_parameters() if param.requires_grad]
    ['lora_A', 'lora_B']
    """

    def __init__(self, base: Linear, r: int = 8, alpha: float | None = None, dropout: float = 0.0):
        super().__init__()
        inputs, outputs = getattr(base, "in_features", 0), getattr(base, "out_features", 0)
        self._set_adapter(base, Linear, inputs, outputs, r, alpha)
        self.in_features, self.out_features = inputs, outputs
        self.dropout = Dropout(dropout)

    def reset_parameters(self) -> None:
        """Draw A again and set B to 0: the layer starts as its base."""
        init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        init.zeros_(self.lora_B)

    def delta(self) -> Tensor:
        """(alpha/r) B A, [out, in]."""
        return self.lora_B @ self.lora_A * self.scaling

    @property
    def bias(self) -> Tensor | None:
        """The base's."""
        return self.base.bias

    def forward(self, input: Tensor) -> Tensor:
        if self.merged:
            return self.base(input)
        change = F.linear(F.linear(self.dropout(input), self.lora_A), self.lora_B) * self.scaling
        if self.base.activation is None:
            return self.base(input) + change
        return self.base.activation(F.linear(input, self.base.weight, self.base.bias) + change)


@layer("", oracle="torch: the Embedding plus (alpha/r) of rows of Aᵀ times Bᵀ")
class LoRAEmbedding(_Adapter):
    """y = W[i] + (alpha/r) Aᵀ[i] Bᵀ, W frozen.

    Shape: as the base, an Embedding [num, dim]; lora_A [r, num] starts as N(0, 1), lora_B [dim, r] as 0; alpha is r
    unless given. The row for padding stays as it is.

    >>> layer = weft.nn.LoRAEmbedding(weft.nn.Embedding(10, 4), r=2)
    >>> layer(weft.tensor([1, 5])).shape
    (2, 4)
    """

    def __init__(self, base: Embedding, r: int = 8, alpha: float | None = None, dropout: float = 0.0):
        super().__init__()
        inputs, outputs = getattr(base, "num_embeddings", 0), getattr(base, "embedding_dim", 0)
        self._set_adapter(base, Embedding, inputs, outputs, r, alpha)
        self.num_embeddings, self.embedding_dim = inputs, outputs
        self.dropout = Dropout(dropout)

    def reset_parameters(self) -> None:
        """Draw A again and set B to 0: the layer starts as its base."""
        init.normal_(self.lora_A)
        init.zeros_(self.lora_B)
        if self.base.padding_idx is not None:
            with no_grad():
                self.lora_A[:, self.base.padding_idx] = 0.0

    def delta(self) -> Tensor:
        """(alpha/r) Aᵀ Bᵀ, [num, dim]."""
        return (self.lora_B @ self.lora_A).transpose(0, 1) * self.scaling

    def forward(self, input: Tensor) -> Tensor:
        y = self.base(input)
        if self.merged:
            return y
        rows = F.embedding(input, self.lora_A.transpose(0, 1), self.base.padding_idx)  # [*, r]
        return y + F.linear(self.dropout(rows), self.lora_B) * self.scaling


def add_lora(
    model: Module, r: int = 8, alpha: float | None = None, dropout: float = 0.0, target: Target = None
) -> Module:
    """Put adapters on the Linear and Embedding layers of a model and freeze all other parameters. Returns the model, or
    the adapter where the model is such a layer itself.

    `target` says which: names as in `model.named_modules()`, whole, their ends ('q_proj') or patterns ('blocks.*.up');
    or a function of path and module; all by default.

    >>> model = weft.nn.Sequential(weft.nn.Linear(4, 8), weft.nn.ReLU(), weft.nn.Linear(8, 2))
    >>> model = weft.nn.lora.add_lora(model, r=2, target="0")
    >>> sum(param.numel() for param in model.parameters() if param.requires_grad)
    24
    """
    chosen = _matcher(target)
    found = [
        (path, module)
        for path, module in _without_adapters(model, "")
        if isinstance(module, (Linear, Embedding)) and chosen(path, module)
    ]
    if not found:
        given = f"target={target!r}, which names no Linear or Embedding of {type(model).__name__}"
        raise problem(GraphError, "add_lora", given, "the name of at least one", "see model.named_modules()")
    model.requires_grad_(False)
    adapted: dict[int, Module] = {}  # a layer that is used at several places has one adapter
    for path, module in found:
        kind: Any = LoRALinear if isinstance(module, Linear) else LoRAEmbedding
        if id(module) not in adapted:
            adapted[id(module)] = kind(module, r, alpha, dropout).train(module.training)
        made = adapted[id(module)]
        if not path:
            return made
        model.set_submodule(path, made)
    for adapter in _adapters(model):  # those from earlier calls learn on
        adapter.lora_A.requires_grad_()
        adapter.lora_B.requires_grad_()
    return model


def _without_adapters(module: Module, path: str) -> Iterator[tuple[str, Module]]:
    """A module and those below it with their paths, but not what adapters already hold."""
    if isinstance(module, _Adapter):
        return
    yield path, module
    for name, child in module._modules.items():  # shared ones at every place
        if child is not None:
            yield from _without_adapters(child, f"{path}.{name}" if path else name)


def _matcher(target: Target) -> Callable[[str, Module], bool]:
    if target is None:
        return lambda path, module: True
    if callable(target):
        return target
    names = [target] if isinstance(target, str) else list(target)
    return lambda path, module: any(
        path == name or path.endswith(f".{name}") or fnmatch.fnmatchcase(path, name) for name in names
    )


def _adapters(model: Module) -> list[_Adapter]:
    return [module for module in model.modules() if isinstance(module, _Adapter)]


def merge(model: Module) -> Module:
    """Add the changes of all adapters of a model to the weights of their bases. A weight that another layer shares is
    copied first, since that layer does not change with it."""
    uses = Counter(id(param) for _, param in model.named_parameters(remove_duplicate=False))
    for adapter in _adapters(model):  # before any of them is changed
        if not adapter.merged:
            adapter._check_stored()
    for adapter in _adapters(model):
        weight = adapter.base.weight
        if uses[id(weight)] > 1 and not adapter.merged:
            adapter.base.weight = Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
        adapter.merge()
    return model


def unmerge(model: Module) -> Module:
    """Take the changes of all adapters of a model out of the weights of their bases."""
    for adapter in _adapters(model):
        adapter.unmerge()
    return model


def lora_state_dict(model: Module) -> OrderedDict[str, Any]:
    """The part of `state_dict()` that belongs to adapters; load it with `load_state_dict(state, strict=False)`.

    >>> model = weft.nn.lora.add_lora(weft.nn.Sequential(weft.nn.Linear(4, 2)), r=2)
    >>> list(weft.nn.lora.lora_state_dict(model))
    ['0.lora_A', '0.lora_B']
    """
    state = model.state_dict()
    return OrderedDict((key, value) for key, value in state.items() if key.rpartition(".")[2] in ("lora_A", "lora_B"))
