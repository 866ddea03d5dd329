"""Module: the base class of layers and models, with PyTorch's habits.

A module keeps its parameters, buffers and submodules in three dicts, by attribute name. Whatever changes a module, but
for writes to its `__dict__`, bumps one version (`state.MODULES`), so that compiled functions see it; while a function
is traced, its modules are noted.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from weft.autograd import no_grad
from weft.boundary import entry
from weft.dtypes import DType
from weft.errors import DTypeError, GraphError, ShapeError, WeftError, hide_frames, problem
from weft.function import run_checkpointed
from weft.nn import hooks, loading, parameter, symbolic
from weft.nn.arguments import record_call
from weft.nn.parameter import Buffer, Parameter
from weft.nn.paths import add_path, check_input
from weft.nn.registered import Registered
from weft.state import MODULES, STATE
from weft.tensor import Tensor, destination

_NOTHING = object()
Self = TypeVar("Self", bound="Module")


class Module:
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

    _is_weft_module = True  # how compiled functions know a module, see `weft.captures`
    _hooks: tuple[hooks.Hook, ...] = ()
    _state_hooks: tuple[tuple[str, int, Callable[..., Any]], ...] = ()
    _parameters: Registered[Parameter | None]
    _buffers: Registered[Tensor | None]
    _modules: Registered[Module | None]
    _non_persistent: frozenset[str]
    _training: bool
    _version: int | None = None  # of the layout of its state_dict
    checkpoint: bool | int  # keep only the inputs for the gradient: see `nn.utils.checkpoint`; False unless set

    def __new__(cls: type[Self], *args: Any, **kwargs: Any) -> Self:
        """A module that remembers what it is made with, for those who describe or save it."""
        made = super().__new__(cls)
        made.__dict__["_call"] = record_call(cls, args, kwargs)
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
            if trace.origins is not None and trace.origins.enters(self):
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
        """`forward`, computed again for its gradient where `checkpoint` says so; a compiled function is traced anew
        when that changes."""
        if self._recomputes() is True:
            return run_checkpointed(self.forward, args, kwargs)
        return self.forward(*args, **kwargs)

    def _recomputes(self) -> Any:
        """What `checkpoint` was set to. A submodule or parameter may have that name, too, and means nothing by it."""
        if STATE.trace is not None:
            return STATE.trace.guard(lambda: self.__dict__.get("checkpoint", False))
        return self.__dict__.get("checkpoint", False)

    # ---- attributes ------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        space = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            found = space.get(kind)
            if found is not None and name in found:
                value = found[name]
                trace = STATE.trace
                if trace is not None:
                    trace.modules[id(self)] = self
                    if kind == "_modules" and value is not None:
                        trace.modules[id(value)] = value
                return value
        if name == "checkpoint":
            return False
        if "_modules" not in space and name in ("_parameters", "_buffers", "_modules", "_training", "_non_persistent"):
            who = type(self).__name__
            raise AttributeError(f"{who}: call super().__init__() before the module is used")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        space = self.__dict__
        if space.get(name, _NOTHING) is not value:
            MODULES.bump()
        if isinstance(value, Parameter):
            self._need_init("parameters")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Buffer) and not (STATE.trace is not None and name in space.get("_buffers", ())):
            self._need_init("buffers")
            self._forget(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        elif isinstance(value, Module):
            self._need_init("submodules")
            self._forget(name, "_modules")
            self._modules[name] = value
        elif "_parameters" in space and name in self._parameters:
            if value is not None:
                given = f"a {type(value).__name__} for the parameter {name!r}"
                raise problem(DTypeError, type(self).__name__, given, "a Parameter or None", "use nn.Parameter(value)")
            self._parameters[name] = None
        elif "_modules" in space and name in self._modules:
            if value is not None:
                given = f"a {type(value).__name__} for the submodule {name!r}"
                raise problem(DTypeError, type(self).__name__, given, "a Module or None", "delete the attribute first")
            self._modules[name] = None
        elif "_buffers" in space and name in self._buffers:
            self._set_buffer(name, value)
        else:
            if STATE.trace is not None:
                STATE.trace.note_write(self, name)
            object.__setattr__(self, name, value)

    def _need_init(self, what: str) -> None:
        if "_modules" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before super().__init__() of {type(self).__name__}")

    def _forget(self, name: str, kind: str) -> None:
        """Take an attribute away from where it lies, if that is not `kind`."""
        self.__dict__.pop(name, None)
        for other in ("_parameters", "_buffers", "_modules"):
            if other != kind:
                self.__dict__[other].pop(name, None)

    def _set_buffer(self, name: str, value: Any) -> None:
        """Assign a buffer. A compiled function writes the buffer in place when it ends; until then it reads the new
        value, and what it has read before stays what it was."""
        if value is not None and not isinstance(value, Tensor):
            given = f"a {type(value).__name__} for the buffer {name!r}"
            raise problem(DTypeError, type(self).__name__, given, "a Tensor or None", "use weft.tensor(value)")
        trace = STATE.trace
        old = self._buffers[name] if trace is None else trace.first_buffer(self._buffers, name)
        if trace is not None and (old is None or not trace.is_made(old)):
            trace.modules[id(self)] = self
            if old is not None and value is not None and (value.shape, value.dtype) != (old.shape, old.dtype):
                given = f"{value.dtype.name}{list(value.shape)} for the buffer {name!r} inside {trace.where}"
                expected = f"what it holds, {old.dtype.name}{list(old.shape)}"
                raise problem(ShapeError, type(self).__name__, given, expected, "assign it outside, or cast it")
            trace.replace_buffer(self._buffers, name, value)
            return
        self._buffers[name] = value

    def __delattr__(self, name: str) -> None:
        self._need_init("or delete anything")
        MODULES.bump()
        for kind in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[kind]:
                del self.__dict__[kind][name]
                self.__dict__["_non_persistent"] -= {name}
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    @property
    def training(self) -> bool:
        """Whether the module is in training mode; `train()` and `eval()` set it for all submodules, too."""
        trace = STATE.trace
        if trace is not None:
            trace.modules[id(self)] = self
            trace.training_read.add(id(self))
        return self.__dict__.get("_training", True)

    @training.setter
    def training(self, mode: bool) -> None:
        if self.__dict__.get("_training") is not mode:
            self.__dict__["_training"] = mode
            MODULES.bump()

    # ---- registration ----------------------------------------------------------------------------------------------

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make `param` the parameter called `name`; None reserves the name."""
        self._check_name(name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise problem(DTypeError, "register_parameter", f"a {type(param).__name__}", "a Parameter or None")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make `tensor` the buffer called `name`: state that is no parameter. Buffers that are not persistent stay out
        of `state_dict()`."""
        self._check_name(name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise problem(DTypeError, "register_buffer", f"a {type(tensor).__name__}", "a tensor or None")
        self._buffers[name] = tensor
        self.__dict__["_non_persistent"] = (
            self._non_persistent - {name} if persistent else self._non_persistent | {name}
        )

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make `module` the submodule called `name`."""
        self._check_name(name, "_modules")
        if module is not None and not isinstance(module, Module):
            raise problem(DTypeError, "add_module", f"a {type(module).__name__}", "a Module or None")
        self._modules[name] = module

    def _check_name(self, name: str, kind: str) -> None:
        who = type(self).__name__
        self._need_init("anything")
        if not isinstance(name, str):
            raise problem(DTypeError, who, f"a name of type {type(name).__name__}", "a string")
        if not name or "." in name:
            raise problem(GraphError, who, f"the name {name!r}", "a name that is not empty and has no '.'")
        if name not in self.__dict__[kind] and hasattr(self, name):
            raise problem(GraphError, who, f"the name {name!r}", "one that no other attribute has", "choose another")

    # ---- what it contains ------------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their paths; each once, where it is found first."""
        memo = set() if memo is None else memo
        if remove_duplicate and self in memo:
            return
        memo.add(self)
        note_module(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The submodules with their names; each once."""
        seen: set[Module] = set()
        note_module(self)
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                note_module(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The submodules."""
        return (child for _, child in self.named_children())

    def _named(self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        note_module(self)
        owners = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else iter([(prefix, self)])
        )
        for path, module in owners:
            for name, value in module.__dict__[kind].items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their paths; shared ones once."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters; shared ones once."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their paths."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a path such as 'encoder.layers.0'; '' is this one."""
        module: Any = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name) if isinstance(module, Module) else None
            if found is None:
                known = ", ".join(module._modules) or "no submodules"
                given = f"the path {target!r}, of which {type(module).__name__} has no {name!r}"
                raise AttributeError(str(problem(GraphError, "get_submodule", given, f"one of {known}")))
            module = found
            note_module(module)
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace the module at a path. With `strict` there must be one."""
        path, _, name = target.rpartition(".")
        if not target:
            raise ValueError("set_submodule: given an empty path; expected the path of a submodule.")
        parent = self.get_submodule(path)
        if strict and name not in parent._modules:
            raise AttributeError(f"set_submodule: {type(parent).__name__} has no submodule {name!r}")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path."""
        return self._get("_parameters", target, "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path."""
        return self._get("_buffers", target, "buffer")

    def _get(self, kind: str, target: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        note_module(module)
        if name not in module.__dict__[kind]:
            raise AttributeError(f"{type(module).__name__} has no {what} {name!r}")
        return module.__dict__[kind][name]

    # ---- modes and moves -------------------------------------------------------------------------------------------

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode for this module and all below it."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: Self) -> Self:
        """Set evaluation mode: `train(False)`."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Ask for gradients in all parameters, or freeze them."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        for param in self.parameters():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.detach().zero_()

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` with every module below this one, and with this one last."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Give every parameter, its gradient and every buffer the value `fn(tensor)`. Parameters keep their identity,
        so that optimizers go on with them; a buffer that changes is another tensor: the old one may be somebody's."""
        modules = list(self.modules()) if recurse else [self]
        params = {id(one): one for module in modules for one in module._parameters.values() if one is not None}
        buffers: dict[int, tuple[Tensor, Tensor]] = {}  # old and new; shared ones stay shared
        with no_grad():
            for param in params.values():
                for tensor in (param, param._grad):
                    if tensor is not None:
                        old = tensor.detach()
                        new = fn(old)
                        if new is not old:
                            tensor._assign(new.node)
            for module in modules:
                for name, old in module._buffers.items():
                    if old is not None:
                        new = buffers.setdefault(id(old), (old, fn(old)))[1]
                        if new is not old:
                            dict.__setitem__(module._buffers, name, new)
        MODULES.bump()
        return self

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """Move all parameters and buffers: `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`. Floating-point
        values change their dtype, integers only their device."""
        dtype, device, _ = destination(args, kwargs)
        if dtype is not None and dtype.kind != "f":
            raise problem(DTypeError, "Module.to", f"the dtype {dtype.name}", "a floating-point dtype")
        return self._apply(lambda tensor: _moved(tensor, dtype, device))

    def type(self: Self, dst_type: Any) -> Self:
        """All parameters and buffers in another dtype."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def float(self: Self) -> Self:
        """Floating-point values as float32."""
        return self.to(_named_dtype("float32"))

    def double(self: Self) -> Self:
        """Floating-point values as float64."""
        return self.to(_named_dtype("float64"))

    def half(self: Self) -> Self:
        """Floating-point values as float16."""
        return self.to(_named_dtype("float16"))

    def bfloat16(self: Self) -> Self:
        """Floating-point values as bfloat16."""
        return self.to(_named_dtype("bfloat16"))

    def cpu(self: Self) -> Self:
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self: Self, device: Any = None) -> Self:
        """Move to an NVIDIA GPU: the first, or the one of that number or name."""
        return self._apply(lambda tensor: tensor.cuda(device))

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
        """Draw all parameters of the model anew, and set buffers such as running statistics back, as when it was made.
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


def note_module(module: Any) -> None:
    """While a function is traced, let it know of a module that it looks at."""
    if STATE.trace is not None and module is not None:
        STATE.trace.modules[id(module)] = module


def indent(text: str) -> str:
    """All lines but the first by two spaces further in."""
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


def _named_dtype(name: str) -> DType:
    from weft.dtypes import by_name

    return by_name(name)


def _moved(tensor: Tensor, dtype: DType | None, device: Any) -> Tensor:
    moved = tensor if dtype is None or tensor.dtype.kind != "f" else tensor.to(dtype)
    return moved if device is None else moved.to(device)
