"""Where calls of the user enter Weft: an error that Weft raises on purpose leaves there without Weft's own frames.

`install` wraps the public functions and methods, once, when the package is loaded. A wrapper costs nothing but a call;
operations on tensors (`tensor.lift`) and compiled functions do the same in their own frame and cost nothing at all.
Frames of the user's own functions that Weft called (inside `weft.compile`, in a `Function`, in a loop) stay. Any other
exception, such as a bug of Weft's, keeps all of its frames, and so does every error under `WEFT_TRACEBACK=full`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from weft import contents
from weft.errors import WeftError, hide_frames

# Modules whose public functions users call, and the namespaces that show them under shorter names.
MODULES = (
    "attention", "autocast", "autograd", "compiled", "counting", "creation", "decompositions", "device", "dtypes",
    "edges", "evaluation", "function", "interop", "kernel", "looping", "matrices", "memory", "precision", "printing",
    "random", "running", "settings", "signal.windows", "cuda", "snapshot", "testing", "window_functions",
)  # fmt: skip
NAMESPACES = ("", "autograd", "functions", "linalg", "nn.functional", "testing")
# Classes whose public methods users call.
CLASSES = {
    "tensor": ("Tensor",),
    "attributes": ("TensorAttributes",),
    "cell": ("TensorCell",),
    "compiled": ("Compiled",),
    "function": ("Context", "Function"),
    "kernel": ("Kernel", "_Decorator"),
    "device": ("DeviceType",),
    "random": ("Generator",),
    "autocast": ("autocast",),
}
# The same in packages whose files are loaded when they are used (`weft.contents`): they are covered then.
LAZY_MODULES = (
    "amp.functions", "drawing.network", "data.arrays", "data.arrow", "data.bucketing", "data.cifar", "data.csv_files",
    "data.foreign", "data.idx", "data.images", "data.text", "optim.clip", "optim.penalties", "optim.swa_utils",
    "profiling.profile", "serialization.model_files", "serialization.saving",
)  # fmt: skip
LAZY_CLASSES = {
    "amp.grad_scaler": ("GradScaler",),
    "data.bucketing": ("LengthBucketSampler", "PadCollate"),
    "data.images": ("ImageFolder",),
    "data.loader": ("DataLoader",),
    "data.resident": ("ResidentData",),
    "data.table": ("Table",),
    "data.text": ("BPETokenizer", "ByteTokenizer", "CharTokenizer"),
    "data.transforms": (
        "CenterCrop", "Compose", "Cutout", "GaussianNoise", "Normalize", "RandomAffine", "RandomCrop",
        "RandomHorizontalFlip", "RandomHue", "Transform", "_Color", "_Mixture",
    ),
    "optim.adafactor": ("Adafactor",),
    "optim.adam": ("Adam", "AdamW", "Adamax", "Lion", "NAdam", "RAdam"),
    "optim.adaptive": ("Adadelta", "Adagrad", "RMSprop", "Rprop"),
    "optim.averaging": ("ExponentialMovingAverage", "StochasticWeightAverage", "_Average"),
    "optim.cycles": ("CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"),
    "optim.groups": ("Group",),
    "optim.large_batch": ("LAMB", "LARS"),
    "optim.lbfgs": ("LBFGS",),
    "optim.lr_scheduler": ("ChainedScheduler", "ReduceLROnPlateau", "SequentialLR", "Warmup", "_WithSchedulers"),
    "optim.muon": ("Muon",),
    "optim.optimizer": ("Optimizer",),
    "optim.scheduler": (
        "ConstantLR", "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR",
        "MultiplicativeLR", "PolynomialLR", "StepLR", "_WithRules",
    ),
    "optim.sgd": ("ASGD", "NAG", "SGD"),
    "optim.swa_utils": ("SWALR",),
    "train.history": ("History",),
    "train.options": ("TrainerOptions",),
    "train.trainer": ("Trainer",),
}  # fmt: skip
# Methods that do it themselves, that the user's class defines, or that no error of ours can come from.
LEFT_OUT = {
    "Tensor": {"__init__", "__hash__"},
    "TensorCell": {"__init__", "dim", "numel", "size"},
    "Compiled": {"__init__", "__call__"},
    "Function": {"forward", "backward"},
    "_Decorator": {"__getattr__", "__dir__"},
    "Generator": {"draw"},
}


_covered: set[str] = set()  # modules that were seen to


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as users see it: errors of ours end at the caller's line."""
    kind, hide = WeftError, hide_frames  # of this scope, since the wrapper gets the names of another module

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except kind as error:
            hide(error)
            raise  # adds no frame for this one

    # With the names of the function's own module, so that tools such as doctest find it there.
    own = types.FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    own.__dict__["is_entry"] = True
    return functools.update_wrapper(own, function)


def is_entry(function: Any) -> bool:
    """Whether errors of ours end at the caller of `function`."""
    return getattr(function, "is_entry", False) is True


def install() -> None:
    """Make entries of everything public that is not one yet."""
    wrapped: dict[Any, Any] = {}  # functions, and the entries that took their places
    for name in (*CLASSES, *MODULES):
        wrapped |= _cover(name, CLASSES.get(name, ()), name in MODULES)
    for name in NAMESPACES:
        space = sys.modules[f"weft.{name}".rstrip(".")]
        for key, value in list(vars(space).items()):
            if isinstance(value, types.FunctionType) and value in wrapped:
                setattr(space, key, wrapped[value])
    contents.LOADED.append(_cover_loaded)


def _cover_loaded() -> None:
    """The same for what was loaded since: called when a package has loaded one of its files."""
    for name in {*LAZY_CLASSES, *LAZY_MODULES} - _covered:
        if f"weft.{name}" in sys.modules:
            _cover(name, LAZY_CLASSES.get(name, ()), name in LAZY_MODULES)


def _cover(name: str, classes: Iterable[str], with_functions: bool) -> dict[Any, Any]:
    """Make entries of the methods of some classes of a module, and of its functions; by what they were."""
    wrapped: dict[Any, Any] = {}
    module = importlib.import_module(f"weft.{name}")
    _covered.add(name)
    for kind in classes:
        wrapped |= _wrap_methods(getattr(module, kind), LEFT_OUT.get(kind, ()))
    for key, value in list(vars(module).items()) if with_functions else ():
        if not key.startswith("_") and _is_own(value, module.__name__):
            wrapped[value] = entry(value)
            setattr(module, key, wrapped[value])
    return wrapped


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module and not is_entry(value)


def _wrap_methods(kind: type, left_out: Iterable[str]) -> dict[Any, Any]:
    wrapped = {}
    for name, value in list(vars(kind).items()):
        if name in left_out or (name.startswith("_") and not name.endswith("__")):
            continue
        if _is_own(value, kind.__module__):
            wrapped[value] = entry(value)
            setattr(kind, name, wrapped[value])
        elif isinstance(value, classmethod):
            setattr(kind, name, classmethod(entry(value.__func__)))
        elif isinstance(value, property) and value.fset is not None:
            setattr(kind, name, property(value.fget, entry(value.fset), value.fdel, value.__doc__))
    return wrapped
