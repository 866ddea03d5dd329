"""Training runs: a model with its data, loss, optimizer, scheduler, metrics, callbacks and the options of the Trainer.

    {"model": [...], "data": {"type": "digits", "batch_size": 64}, "loss": "CrossEntropyLoss",
     "optimizer": {"type": "AdamW", "lr": 0.001}, "metrics": ["accuracy"], "trainer": {"epochs": 5}}

`load_run` reads and checks a file without making anything large; `Run` makes the parts when they are first used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.base.errors import ConfigError, DeviceError, problem
from weft.config import locations, sources
from weft.config import model as models
from weft.config.catalogue import build as build_layer
from weft.config.catalogue import call, layer_class
from weft.config.locations import Location, did_you_mean, display
from weft.config.named_classes import (
    UnboundOptimizer,
    arguments_of,
    check_arguments,
    make_metric,
    make_scheduler,
    optimizers,
)
from weft.config.reading import Source, check_tree, read
from weft.core.tensor import Tensor
from weft.nn.module import Module
from weft.nn.registry import LAYERS
from weft.optim.optimizer import Optimizer

KEYS = ("model", "data", "loss", "optimizer", "scheduler", "metrics", "callbacks", "trainer")
_count = partial(locations.integer, minimum=1)


def _check_optional(check: Callable[..., Any], location: Location, value: Any) -> Any:
    return None if value is None else check(location, value)


def _budget(location: Location, value: Any) -> Any:
    return (
        locations.string(location, value)
        if isinstance(value, str)
        else locations.integer(location, value, 1, 2**63 - 1)
    )


def _checkpoints(location: Location, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    names = locations.array(location, value, "true, false or names of modules")
    return [locations.string(location.at(k), one) for k, one in enumerate(names)]


# The options of `Trainer` and of `Trainer.fit` that a file can give.
TRAINER: dict[str, Callable[[Location, Any], Any]] = {
    "device": locations.string,
    "precision": partial(locations.choice, choices=("fp32", "bf16", "fp16")),
    "accumulate": _count,
    "clip_norm": partial(_check_optional, partial(locations.number, above=0.0)),
    "clip_value": partial(_check_optional, partial(locations.number, above=0.0)),
    "checkpoint": partial(_check_optional, _checkpoints),
    "memory_budget": partial(_check_optional, _budget),
    "on_nan": partial(locations.choice, choices=("stop", "skip", "ignore")),
    "seed": partial(locations.integer, minimum=0),
    "run": partial(_check_optional, locations.string),
}
FIT: dict[str, Callable[[Location, Any], Any]] = {
    "epochs": _count,
    "max_steps": partial(_check_optional, _count),
    "validate_every": _count,
}
# Callbacks that a file can name; the progress bar is the command's own.
CALLBACKS = (
    "CSVLogger",
    "EMA",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "TensorBoard",
)
LOSSES = ("loss", "margin_loss")  # families of the catalogue
CLASS_LOSSES = ("CapsuleMarginLoss", "CrossEntropyLoss", "MultiMarginLoss", "NLLLoss")  # whose targets are classes


class ClassesLast(Module):
    """A loss of scores [*, classes] and targets [*]: what losses take as [n, classes] and [n]."""

    def __init__(self, loss: Module):
        super().__init__()
        self.loss = loss

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.loss(prediction.flatten(0, -2), target.flatten())


class Run:
    """A run as a file describes it. `tree` is checked; `folder` is where relative paths begin; `known` is what was
    derived from the data, such as classes (see `sources`), and is complete once the data were read.

    >>> run = weft.config.load_run(
    ...     {
    ...         "model": {"type": "Linear", "in_features": 64, "out_features": 10},
    ...         "data": {"type": "digits"},
    ...         "loss": "CrossEntropyLoss",
    ...         "optimizer": {"type": "SGD", "lr": 0.1},
    ...         "trainer": {"epochs": 1, "device": "cpu"},
    ...     }
    ... )
    >>> history = run.fit()
    >>> history["loss"][-1] < 2.3
    True
    """

    def __init__(self, tree: dict[str, Any], location: Location, folder: Path):
        self.tree, self.location, self.folder = tree, location, folder
        locations.check_keys(location, tree, KEYS, ("model", "data", "loss", "optimizer"))
        self.options = self._options()
        self._parts: tuple[Any, Any] | None = None
        self.known: dict[str, Any] = {}
        data = dict(tree["data"]) if isinstance(tree["data"], Mapping) else tree["data"]
        self._data = sources.check(location.at("data"), data)
        self._data.setdefault("seed", self.options.get("seed", 0))
        state = weft.default_generator.get_state()
        self.model()  # its values are lazy: nothing is computed
        weft.default_generator.set_state(state)
        self.loss()
        self._metrics()
        self.optimizer_class()
        if tree.get("scheduler") is not None:
            self.scheduler(UnboundOptimizer())
        self._callback_classes()

    def _options(self) -> dict[str, Any]:
        at = self.location.at("trainer")
        given = locations.object_at(at, self.tree.get("trainer", {}))
        checks = {**TRAINER, **FIT}
        locations.check_keys(at, given, list(checks))
        return {key: checks[key](at.at(key), value) for key, value in given.items()}

    # ---- parts --------------------------------------------------------------------------------------------------

    def model(self) -> Module:
        """A new model; its parameters are drawn after the seed of the run was set. A string names a file."""
        seed = self.options.get("seed", 0)
        weft.manual_seed(seed)
        tree, location = self.tree["model"], self.location.at("model")
        if isinstance(tree, str) and tree.lower().endswith((".json", ".toml")):
            tree, location = read(self.folder / tree)
        with weft.device("cpu"):
            return models.build(location, tree)

    def loss(self) -> Any:
        """The loss: one of the catalogue by name, with its arguments; `classes_last` where scores are [*, classes]."""
        at, tree = self.location.at("loss"), self.tree["loss"]
        given = (
            {"type": tree}
            if isinstance(tree, str)
            else locations.object_at(at, tree, "a name, or an object with a type")
        )
        is_last = locations.boolean(at.at("classes_last"), given.pop("classes_last", False))
        if "type" in given:
            cls = layer_class(at, locations.string(at.at("type"), given["type"]))
            if LAYERS[cls.__name__].family not in LOSSES:
                names = [name for name, one in LAYERS.items() if one.family in LOSSES]
                at.at("type").fail(cls.__name__, "a loss", did_you_mean(given["type"], names))
        made = build_layer(at, given)
        return ClassesLast(made) if is_last else made

    def optimizer_class(self) -> tuple[Any, dict[str, Any], Location]:
        """The class of the optimizer and its arguments."""
        at, tree = self.location.at("optimizer"), self.tree["optimizer"]
        given = (
            {"type": tree}
            if isinstance(tree, str)
            else locations.object_at(at, tree, "a name, or an object with a type")
        )
        if "type" not in given:
            at.fail("no 'type'", "the name of an optimizer", "add 'type', such as 'AdamW'")
        known = optimizers()
        cls = known[locations.choice(at.at("type"), given.pop("type"), known)]
        check_arguments(at, cls, given, ("params",))
        return cls, given, at

    def optimizer(self, model: Module) -> Optimizer:
        """The optimizer of a model's parameters."""
        cls, given, at = self.optimizer_class()
        return call(at, cls, given, arguments_of(cls, ("params",)), (model.parameters(),))

    def scheduler(self, optimizer: Optimizer) -> Any:
        """The scheduler, or None; with `each` as the pair that the Trainer takes."""
        tree = self.tree.get("scheduler")
        if tree is None:
            return None
        at = self.location.at("scheduler")
        given = locations.object_at(at, tree, "an object with a type")
        each = given.pop("each", None)
        if each is not None:
            locations.choice(at.at("each"), each, ("step", "epoch"))
        made = make_scheduler(at, given, optimizer)
        return made if each is None else (made, each)

    def _metrics(self) -> list[Any]:
        at = self.location.at("metrics")
        found = []
        for k, one in enumerate(locations.array(at, self.tree.get("metrics", []), "a list of metrics")):
            found.append(make_metric(at.at(k), one))
        return found

    def _callback_classes(self) -> list[tuple[Any, dict[str, Any], Location]]:
        at = self.location.at("callbacks")
        found = []
        for k, one in enumerate(locations.array(at, self.tree.get("callbacks", []), "a list of callbacks")):
            here = at.at(k)
            given = {"type": one} if isinstance(one, str) else locations.object_at(here, one, "an object with a type")
            if "type" not in given:
                here.fail("no 'type'", f"one of {', '.join(CALLBACKS)}")
            cls = getattr(weft.train, locations.choice(here.at("type"), given.pop("type"), CALLBACKS))
            check_arguments(here, cls, given)
            found.append((cls, given, here))
        return found

    def callbacks(self) -> list[Any]:
        """The callbacks of the file."""
        return [call(at, cls, given, arguments_of(cls)) for cls, given, at in self._callback_classes()]

    # ---- data ---------------------------------------------------------------------------------------------------

    def parts(self) -> tuple[Any, Any]:
        """The data sets for training and validation, or lists of batches; read once."""
        if self._parts is None:
            loss = self.loss()
            kind = type(loss.loss if isinstance(loss, ClassesLast) else loss).__name__
            self._parts = sources.load(self._data, self.folder, self.known, kind in CLASS_LOSSES)
        return self._parts

    def train_loader(self, device: Any = None, is_training: bool = True) -> Any:
        """The batches of the training data; unless `is_training`, in order and without augmentation."""
        return self._loader(self.parts()[0], device, is_training)

    def validation_loader(self, device: Any = None) -> Any:
        """The batches for validation, in order and without augmentation; None without validation data."""
        found = self.parts()[1]
        return None if found is None else self._loader(found, device, is_training=False)

    def input_loader(self, arrays: Mapping[str, np.ndarray], model: Module, device: Any = None) -> Any:
        """The batches of other inputs by name, prepared as those of the run: of the same dtypes, standardize and
        transformed as they were. A batch ends with zeros instead of a target."""
        inputs = [_as_dtype(one, name) for one, name in zip(*self._inputs(arrays, model), strict=True)]
        if not all(one.ndim for one in inputs):
            raise problem(ConfigError, "the inputs", "a single number", "arrays with a row for each sample")
        if "mean" in self.known:
            inputs[0] = sources.standardize(inputs[0], self.known)
        batch = (*inputs, np.zeros(len(inputs[0]), np.int64))
        if self._data["type"] == "graph":
            return [batch]
        return self._loader(weft.data.ArrayDataset(*batch), device, is_training=False)

    def _inputs(self, arrays: Mapping[str, np.ndarray], model: Module) -> tuple[list[np.ndarray], list[Any]]:
        """The arrays that the names of the model's inputs, or of those of the data, stand for, and their dtypes."""
        own = {"graph": ["x", "edge_index"], "arrays": self._data.get("inputs", ["x"])}.get(self._data["type"], ["x"])
        names = list(getattr(model, "_input_names", ()))
        dtypes = list(self.known.get("dtypes", [None] * (len(names) or len(own))))
        for chosen in (names, own):
            if chosen and len(chosen) == len(dtypes) and all(name in arrays for name in chosen):
                return [np.asarray(arrays[name]) for name in chosen], dtypes
        if len(arrays) == len(dtypes) == 1:
            return [np.asarray(one) for one in arrays.values()], dtypes
        given = f"arrays {', '.join(arrays)}"
        expected = " or ".join(dict.fromkeys(", ".join(one) for one in (names, own) if len(one) == len(dtypes)))
        raise problem(ConfigError, "the inputs", given, f"the inputs of the model: {expected}", "rename the arrays")

    def _loader(self, dataset: Any, device: Any, is_training: bool) -> Any:
        if isinstance(dataset, list):  # batches already
            return dataset
        values = self._data
        options: dict[str, Any] = {"shuffle": values.get("shuffle", True), "last": values.get("last", "keep")}
        transform = weft.data.transforms.Compose(*values.get("transform", []))
        if not is_training:
            transform = transform.for_evaluation()
        if transform.transforms:
            options["transform"] = transform
        if not is_training:
            options.update(shuffle=False, last="keep")
        return weft.data.DataLoader(
            dataset, values.get("batch_size", 32), device=device, seed=values["seed"],
            num_workers=values.get("num_workers", 0), **options,
        )  # fmt: skip

    # ---- training -----------------------------------------------------------------------------------------------

    def trainer(self, run: Any = None, device: Any = None, callbacks: Sequence[Any] = ()) -> Any:
        """The Trainer. `run` (False for none) and `device` come before those of the file; `callbacks` are added."""
        model = self.model()
        options = {key: value for key, value in self.options.items() if key in TRAINER}
        options["device"] = device or options.get("device", "auto")
        if run is None:
            run = self.folder / options["run"] if options.get("run") else False
        options["run"] = None if run is False else run
        try:
            weft.get_device(options["device"])  # says what is missing before anything is made
        except DeviceError as error:
            self.location.at("trainer").at("device").fail(str(error))
        optimizer = self.optimizer(model)
        return weft.train.Trainer(
            model, self.loss(), optimizer, self._metrics(), scheduler=self.scheduler(optimizer),
            callbacks=[*self.callbacks(), *callbacks], **options,
        )  # fmt: skip

    def fit(self, trainer: Any = None, resume: Any = None) -> Any:
        """Train as the file says; returns the history."""
        trainer = self.trainer() if trainer is None else trainer
        options = {key: value for key, value in self.options.items() if key in FIT}
        data = self.train_loader(trainer.device), self.validation_loader(trainer.device)
        return trainer.fit(*data, resume=resume, **options)

    def to_config(self) -> dict[str, Any]:
        """The tree with paths that hold from any folder, as a run keeps it."""
        tree = json.loads(json.dumps(self.tree))
        for key in sources.PATHS:
            if key in tree["data"]:
                tree["data"][key] = str((self.folder / tree["data"][key]).resolve())
        if isinstance(tree["model"], str) and tree["model"].lower().endswith((".json", ".toml")):
            tree["model"] = read(self.folder / tree["model"])[0]
        return tree


def load_run(source: Source, changes: Sequence[str] = ()) -> Run:
    """The run that a file, a text or a dict describes. `changes` are of the form `optimizer.lr=0.01`."""
    tree, location = read(source)
    tree = locations.object_at(location, tree, "an object with a model, data, a loss and an optimizer")
    for change in changes:
        _change(tree, change)
    is_path = not isinstance(source, Mapping) and location.source
    return Run(tree, location, Path(str(source)).parent if is_path else Path())


def _change(tree: dict[str, Any], change: str) -> None:
    """Set one value: `optimizer.lr=0.01`, `model.layers[0].activation=relu`. Values are JSON, or strings."""
    key, sign, text = change.partition("=")
    at = Location("--set", key.strip())
    if not sign or not key.strip():
        at.fail(repr(change), "KEY=VALUE, such as optimizer.lr=0.01")
    try:
        value = check_tree(json.loads(text), at)
    except ConfigError:
        raise
    except (ValueError, RecursionError):
        value = text
    owner: Any = tree
    steps = [part for part in key.strip().replace("[", ".[").split(".") if part]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        name: Any = step
        if step.startswith("["):
            number = step[1:-1]
            if not isinstance(owner, list) or not number.isdigit() or int(number) >= len(owner):
                at.fail(f"{step} of {display(owner)}", "the number of an entry of a list")
            name = int(number)
        elif not isinstance(owner, dict):
            at.fail(f"{step!r} of {display(owner)}", "a key of an object")
        if following is None:
            owner[name] = value
        elif isinstance(owner, dict):
            owner = owner.setdefault(name, {})
        else:
            owner = owner[name]


def check(source: Source) -> str:
    """Read a file and say what it describes; what is wrong is a ConfigError."""
    tree, location = read(source)
    if isinstance(tree, dict) and "model" in tree and "type" not in tree:
        run = load_run(source)
        model = run.model()
        run.optimizer(model)  # what its values may be
        what = f"a run of {run.options.get('epochs', 1)} epochs on {run._data['type']}"
    else:
        model = models.build(location, tree)
        what = "a network"
    count = sum(param.numel() for param in model.parameters() if hasattr(param, "numel"))
    return f"{what}, {type(model).__name__} with {count:,} parameters"


def _as_dtype(array: np.ndarray, name: str | None) -> np.ndarray:
    """An array with the dtype of what a model was trained with. Floats instead of whole numbers stay floats."""
    dtype = np.dtype(np.float32 if name is None else name)
    is_float = array.dtype.kind == "f"
    if name is None or (is_float and dtype.kind in "iu"):
        return array.astype(np.float32) if is_float else array
    return array.astype(dtype, copy=False) if np.can_cast(array.dtype, dtype, "same_kind") else array


# ---- what can be named -------------------------------------------------------------------------------------------
