"""Module: the base class of layers and models, with PyTorch's habits.

A module keeps its parameters, buffers and submodules in three dicts, by attribute name (`attributes`). Whatever changes
a module, but for writes to its `__dict__`, bumps one version (`state.MODULES`), so that compiled functions see it;
while a function is traced, its modules are noted. `traversal` has what looks at the contents, `conversion` what sets
modes, dtypes and devices; here are calls, hooks, state and descriptions.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from weft.autograd.function import run_checkpointed
from weft.base.errors import GraphError, WeftError, hide_frames, problem
from weft.base.state import MODULES, STATE
from weft.core.boundary import entry
from weft.nn import parameter
from weft.nn.module import hooks, loading, symbolic
from weft.nn.module.arguments import record_call
from weft.nn.module.conversion import ModuleConversion
from weft.nn.module.paths import add_path, check_input
from weft.nn.module.registered import Registered

Self = TypeVar("Self", bound="Module")


class Module(ModuleConversion):
    """Base class of layers and models. Subclasses assign parameters and submodules in `__init__`, after
    `super().__init__()`, and define `forward`; a module is called like a function.

    >>> class Scale(weft.nn.Module):
    ...     def __init__(self, size):
    ...         super().__init__()
    ...         self.weight = weft.nn.Parameter(weft.full((size,), 2.0))
    ...
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> layer = Scale(2)
    >>> layer(weft.ones(2))
    tensor([2., 2.], requires_grad=True)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight']
    """

    _is_weft_module = True  # how compiled functions know a module, see `weft.jit.captures`
    _hooks: tuple[hooks.Hook, ...] = ()
    _state_hooks: tuple[tuple[str, int, Callable[..., Any]], ...] = ()
    _modules: Registered[Module | None]
    _version: int | None = None  # of the layout of its state_dict
    checkpoint: bool | int  # keep only the inputs for the gradient: see `nn.utils.checkpoint`; False unless set

    def __new__(cls: type[Self], *args: Any, **kwargs: Any) -> Self:
        """A module that remembers what it is made with, for those who describe or save it."""
        made = super().__new__(cls)
        made.__dict__["_call"] = record_call(cls, args, kwargs)
        if STATE.trace is not None:
            STATE.trace.made_modules[id(made)] = weakref.ref(made)
        return made

    def __init__(self) -> None:
        self._prepare()

    def _prepare(self) -> None:
        self.__dict__.update(
            _training=True, _parameters=Registered(), _buffers=Registered(), _modules=Registered(),
            _non_persistent=frozenset(),
        )  # fmt: skip

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result of a call. Subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if symbolic.in_use and symbolic.has_symbol(args, kwargs):
            return symbolic.call(self, args, kwargs)
        trace = STATE.trace
        if trace is not None:
            trace.modules[id(self)] = self
            if trace.origins is not None and trace.origins.is_entering(self):
                return trace.origins.call(self, "forward", lambda: self(*args, **kwargs))
        elif parameter._waiting:
            parameter.compute_waiting()
        try:
            try:
                if self._hooks:
                    return hooks.call_with_hooks(self, args, kwargs)
                if trace is not None or "checkpoint" in self.__dict__:
                    return self._run_forward(args, kwargs)
                return self.forward(*args, **kwargs)
            except (AttributeError, TypeError) as error:
                check_input(self, args, error)
                raise
        except WeftError as error:
            add_path(error, self)
            hide_frames(error)
            raise

    def _run_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`forward`, computed again for its gradient where `checkpoint` says so; a compiled function is traced again
        when that changes."""
        if self._recomputes() is True:
            return run_checkpointed(self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    def _recomputes(self) -> Any:
        """What `checkpoint` was set to. A submodule or parameter may have that name, too, and means nothing by it."""
        if STATE.trace is not None and not STATE.trace.has_made(self):
            return STATE.trace.guard(lambda: self.__dict__.get("checkpoint", False))
        return self.__dict__.get("checkpoint", False)

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> hooks.ModuleHandle:
        """Call `hook(module, args)` before `forward`; what it returns, unless None, are the arguments."""
        return hooks.add_hook(self, "before", hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> hooks.ModuleHandle:
        """Call `hook(module, args, output)` after `forward`; what it returns, unless None, is the output."""
        return hooks.add_hook(self, "after", hook, prepend, with_kwargs, always_call)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> hooks.ModuleHandle:
        """Call `hook(module, grad_output)` before the gradients of a call are computed; it may return others."""
        return hooks.add_hook(self, "backward_before", hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> hooks.ModuleHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of a call are known; it may return others for
        `grad_input`."""
        return hooks.add_hook(self, "backward", hook, prepend)

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Parameters and persistent buffers by their paths. They share memory with the module; `keep_vars` gives the
        parameters themselves."""
        return loading.state_dict(self, *args, destination=destination, prefix=prefix, keep_vars=keep_vars)

    @entry
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> loading.LoadResult:
        """Take over the values of a `state_dict`, PyTorch's included: tensors of any library, or arrays. `strict` asks
        for exactly the module's own keys; with `assign` the tensors themselves become parameters and buffers, with
        their dtypes and devices."""
        return loading.load(self, state_dict, strict, assign)

    @entry
    def save(self, path: Any) -> None:
        """Write the model, its layers and its weights, as one safetensors file, from which `nn.load(path)` makes it
        again. Classes of the catalogue and containers of them can be saved, and others whose constructors got numbers,
        texts, lists and such layers; see docs/checkpoints.md.

        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> weft.nn.Sequential(weft.nn.Linear(4, 2), weft.nn.ReLU()).save(path)
        >>> weft.nn.load(path)
        Sequential(
          (0): Linear(in_features=4, out_features=2, bias=True)
          (1): ReLU()
        )
        """
        from weft.serialization.model_files import save

        save(self, path)

    @entry
    def load(self, path: Any, key_map: Any = None, strict: bool = True) -> loading.LoadResult:
        """Take over the weights of a file: of `save`, of safetensors, of torch, or of sharded weights. `key_map` gives
        the file's names those of this module: a dict, or a function of a name; None leaves a tensor out. See
        `serialization.load_into`."""
        from weft.serialization.sharded import load_into

        return load_into(self, path, key_map, strict)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """This module's own part of `state_dict()`, without those below it; subclasses may add to it."""
        loading.save_own(self, destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this module's own part of a state_dict; subclasses may change `state_dict` first. `local_metadata` has
        the `_version` that the module had when it was saved."""
        loading.load_own(self, state_dict, prefix, missing_keys, error_msgs)

    def get_extra_state(self) -> Any:
        """State besides tensors, for `state_dict()`; subclasses that have some define this and `set_extra_state`."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    def set_extra_state(self, state: Any) -> None:
        """Take over what `get_extra_state` returned."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> loading.StateHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` at the end of this module's part of `state_dict`."""
        return loading.add_hook(self, "saved", hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> loading.StateHandle:
        """Call `hook(module, prefix, keep_vars)` before this module's part of `state_dict`."""
        return loading.add_hook(self, "saving", hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> loading.StateHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing, unexpected, errors)` before this
        module's part of a state_dict is loaded; it may change the state_dict."""
        return loading.add_hook(self, "loading", hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> loading.StateHandle:
        """Call `hook(module, incompatible_keys)` when a state_dict was loaded; it may change the lists of keys."""
        return loading.add_hook(self, "loaded", hook)

    # ---- copies, and what people see -------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: of a buffer that was computed from parameters only its value."""
        state = dict(self.__dict__)
        if any(buffer is not None and not buffer.is_leaf for buffer in self._buffers.values()):
            state["_buffers"] = Registered(
                {
                    name: buffer if buffer is None or buffer.is_leaf else buffer.detach()
                    for name, buffer in self._buffers.items()
                }
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        MODULES.bump()

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__({name: copy.deepcopy(value, memo) for name, value in self.__getstate__().items()})
        return made

    def extra_repr(self) -> str:
        """What `repr` shows between the parentheses besides submodules."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        below = [f"({name}): " + indent(repr(child)) for name, child in self._modules.items()]
        if len(extra) == 1 and not below:
            return f"{self._get_name()}({extra[0]})"
        inside = "".join(f"  {line}\n" for line in [*extra, *below])
        return f"{self._get_name()}(" + (f"\n{inside})" if inside else ")")

    def summary(self, *shapes: Any, **options: Any) -> Any:
        """See `nn.summary`."""
        from weft.nn.summarize import summary

        return summary(self, *shapes, **options)

    def to_config(self) -> dict[str, Any]:
        """What `nn.from_config` makes an equal model of, parameters left aside: a dict of what JSON has. A model with
        classes of its own, or with functions, is refused; see docs/config.md.

        >>> weft.nn.Linear(4, 2, bias=False).to_config()
        {'type': 'Linear', 'in_features': 4, 'out_features': 2, 'bias': False}
        """
        from weft.config.describe import to_config

        return to_config(self)

    def reset_parameters(self) -> None:
        """Draw all parameters of the model again, and set buffers such as running statistics back, as when it was made.
        Layers with parameters of their own define it.

        >>> model = weft.nn.Sequential(weft.nn.Linear(1, 1), weft.nn.BatchNorm1d(1))
        >>> weft.nn.init.zeros_(model[1].weight)
        Parameter containing:
        tensor([0.], requires_grad=True)
        >>> model.reset_parameters()
        >>> model[1].weight
        Parameter containing:
        tensor([1.], requires_grad=True)
        """
        own = [name for name, param in self._parameters.items() if param is not None]
        if own:
            given = f"parameters of its own, {', '.join(own)}, and no reset_parameters()"
            fix = f"define reset_parameters() in {type(self).__name__}"
            raise problem(GraphError, type(self).__name__, given, "a class that says how its parameters start", fix)
        for name, child in self.named_children():
            if "parametrizations" in child._modules:
                given = f"{name}, whose parameters are computed by parametrizations"
                fix = "nn.utils.parametrize.remove_parametrizations, then reset, then parametrize again"
                raise problem(GraphError, type(self).__name__, given, "parameters that can be drawn", fix)
            child.reset_parameters()

    def supports(self, device: Any = "cpu", training: bool = True) -> Any:
        """See `nn.supports`: whether the module runs on a device, and which layers prevent it."""
        from weft.nn.support import supports

        return supports(self, device, training)

    def prevents(self, device: Any, training: bool) -> str | None:
        """Why this module itself, without those below it, cannot run on `device`; None where it can. Layers that need
        something which not every device has define it."""
        return None


def indent(text: str) -> str:
    """All lines but the first by two spaces further in."""
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])
