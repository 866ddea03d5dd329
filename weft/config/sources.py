"""The data of a run: `SOURCES` has the kinds, with their keys and what makes data sets of them.

A source gives two data sets, for training and validation, or two lists of batches where a batch is all there is (a
graph). `weft.data` reads the files; paths are relative to the file of the configuration.

What is derived from the data themselves (classes, mean and deviation of features, characters of a text, dtypes of
inputs) is put into `known`, a dict that JSON can hold, which a run keeps with its results. Where `known` has it, it is
used: data that do not fit it are an error, and numbers mean the same in training, evaluation and prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.base.errors import ConfigError, ShapeError, problem
from weft.config import locations
from weft.config.catalogue import call
from weft.config.locations import Location
from weft.data import digits

Check = Callable[[Location, Any], Any]
DTYPES = (*[f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (16, 32, 64)], "int8", "uint8", "bool")
IGNORED = -100  # the target of nodes that do not count


def _sizes(location: Location, value: Any) -> list[int]:
    return [
        locations.integer(location.at(k), one, 1)
        for k, one in enumerate(locations.array(location, value, "a list of sizes"))
    ]


def _names(location: Location, value: Any) -> list[str]:
    return [
        locations.string(location.at(k), one)
        for k, one in enumerate(locations.array(location, value, "a list of names"))
    ]


def _size_of_images(location: Location, value: Any) -> Any:
    return locations.integer(location, value, 1) if isinstance(value, int) else tuple(_sizes(location, value))


_text: Check = locations.string
_flag: Check = locations.boolean
_count: Check = partial(locations.integer, minimum=1)

# Keys of all sources.
COMMON: dict[str, Check] = {
    "type": _text,
    "batch_size": _count,
    "shuffle": _flag,
    "validation": partial(locations.number, minimum=0.0, maximum=0.9),
    "seed": partial(locations.integer, minimum=0),
    "num_workers": partial(locations.integer, minimum=0, maximum=256),
    "last": partial(locations.choice, choices=("keep", "drop", "pad")),
    "transform": lambda location, value: locations.array(location, value, "a list of transforms"),
}
PATHS = ("path", "folder")  # keys that name files
Parts = tuple[Any, Any]  # training and validation; None where there is none


@dataclass(frozen=True)
class Source:
    """The keys of one type of data, and what makes data sets of checked values."""

    make: Callable[[dict[str, Any], Path], Parts]
    required: dict[str, Check]
    optional: dict[str, Check]
    unused: tuple[str, ...] = ()  # keys of others that this kind has no use for

    def checks(self) -> dict[str, Check]:
        """All keys, and what their values may be."""
        found = {**COMMON, **self.required, **self.optional}
        return {key: check for key, check in found.items() if key not in self.unused}


def _split(values: dict[str, Any], arrays: list[np.ndarray]) -> Parts:
    """Rows for training and for validation, chosen by the seed."""
    rows = len(arrays[0])
    count = round(rows * values.get("validation", 0.2))
    order = np.random.default_rng(values.get("seed", 0)).permutation(rows)
    parts = [[one[np.sort(chosen)] for one in arrays] for chosen in (order[count:], order[:count])]
    return weft.data.ArrayDataset(*parts[0]), weft.data.ArrayDataset(*parts[1]) if count else None


def _digits(values: dict[str, Any], folder: Path) -> Parts:
    shape = tuple(values.get("shape", (64,)))
    if int(np.prod(shape)) != digits.PIXELS:
        expected = f"sizes of {digits.PIXELS} elements, such as [1, 8, 8]"
        raise problem(ConfigError, "data.shape", f"{list(shape)} for digits", expected)
    parts = []
    for name in ("train", "test"):
        images, labels = digits.load(name)
        parts.append(weft.data.ArrayDataset(images.reshape(-1, *shape), labels))
    return parts[0], parts[1]


def _table(values: dict[str, Any], table: Any) -> Parts:
    """Columns of numbers, and the target. With `standardize` features have mean 0 and deviation 1 in the training
    part. Text is classes, and so are whole numbers where the loss takes classes."""
    known, name = values["known"], values["target"]
    features = values["features"] if "features" in values else [one for one in table if one != name]
    for key, one in [("target", name), *[("features", feature) for feature in features]]:
        if one not in list(table):
            expected = f"a column of {values['path']!r}: {', '.join(table)}"
            raise problem(ConfigError, f"data.{key}", repr(one), expected, locations.did_you_mean(one, table))
    refuse_missing(table, [*features, name])
    target = table[name]
    if target.dtype.kind == "f":
        target = target.astype(np.float32).reshape(-1, 1)  # as the result of a network with one output
    elif target.dtype.kind in "iu" and not values["has_classes"]:
        target = target.astype(np.int64)
    else:
        target, known["classes"] = table.encode(name, known.get("classes"))
    train, validation = _split(values, [table.features(features), target])
    if values.get("standardize", False):
        if "mean" not in known:
            known["mean"] = train.arrays[0].mean(0).tolist()
            known["deviation"] = train.arrays[0].std(0).tolist()
        for part in (train, validation):
            if part is not None:
                part.arrays = (standardize(part.arrays[0], known), part.arrays[1])
    return train, validation


def standardize(features: np.ndarray, known: dict[str, Any]) -> np.ndarray:
    """Features [rows, columns] less the mean that a run knows, over the deviation where that is not 0."""
    mean, deviation = (np.asarray(known[name], np.float32) for name in ("mean", "deviation"))
    if features.shape[-1:] != mean.shape:
        raise problem(ShapeError, "standardize", f"features {list(features.shape)}", f"[rows, {len(mean)}]")
    return ((features - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)


def refuse_missing(table: Any, names: Sequence[str]) -> None:
    """Refuse columns with values that are missing: NaN, or empty texts."""
    for name in names:
        column = table[name]
        if column.dtype.kind == "f":
            absent = np.isnan(column)
        else:
            absent = np.array([one is None or one == "" for one in column.tolist()], bool)
        if absent.any():
            given = f"no value in row {int(absent.argmax()) + 1} of column {name!r} ({int(absent.sum())} in all)"
            fix = "fill the value in, leave the row out, or leave the column out of 'features'"
            raise problem(weft.data.DataError, "a table", given, "a value in each row", fix)


def _csv(values: dict[str, Any], folder: Path) -> Parts:
    options = {"delimiter": values["delimiter"]} if "delimiter" in values else {}
    return _table(values, weft.data.read_csv(folder / values["path"], **options))


def _parquet(values: dict[str, Any], folder: Path) -> Parts:
    return _table(values, weft.data.read_parquet(folder / values["path"]))


def _arrays(values: dict[str, Any], folder: Path) -> Parts:
    names = [*values.get("inputs", ["x"]), values.get("target", "y")]
    return _split(values, [np.asarray(one) for one in weft.data.open_arrays(folder / values["path"], *names).arrays])


def _images(values: dict[str, Any], folder: Path) -> Parts:
    dataset = weft.data.ImageFolder(folder / values["folder"], values["size"], mode=values.get("mode", "RGB"))
    classes = values["known"].setdefault("classes", dataset.classes)
    if classes != dataset.classes:
        given = f"folders {', '.join(dataset.classes)}"
        raise problem(weft.data.DataError, "images", given, f"the classes of the run: {', '.join(classes)}")
    rows = len(dataset)
    count = round(rows * values.get("validation", 0.2))
    order = np.random.default_rng(values.get("seed", 0)).permutation(rows)
    parts = [weft.data.Subset(dataset, np.sort(chosen).tolist()) for chosen in (order[count:], order[:count])]
    return parts[0], parts[1] if count else None


def _of_folder(name: str, values: dict[str, Any], folder: Path) -> Parts:
    read = getattr(weft.data, name)
    return read(folder / values["folder"], "train"), read(folder / values["folder"], "test")


def tokenizer_of(values: dict[str, Any], folder: Path) -> tuple[Any, str]:
    """The tokenizer of a text, and the text."""
    from weft.data.faults import read_bytes

    content = read_bytes("text", folder / values["path"])
    if not content or b"\0" in content:
        given = f"{values['path']!r}, {'a binary' if content else 'an empty'} file"
        raise problem(weft.data.DataError, "text", given, "a text")
    text = content.decode("utf-8", errors="replace")
    if values.get("tokenizer", "char") == "byte":
        return weft.data.ByteTokenizer(), text
    characters = values.get("known", {}).setdefault("characters", "".join(sorted({*text})))
    return weft.data.CharTokenizer(characters), text


def _text_file(values: dict[str, Any], folder: Path) -> Parts:
    """Rows of tokens and of those that follow; the end of the text is for validation."""
    tokenizer, text = tokenizer_of(values, folder)
    tokens = tokenizer.encode(text)
    length = values["length"]
    cut = len(tokens) - round(len(tokens) * values.get("validation", 0.1))
    train = weft.data.pack_tokens(tokens[:cut], length, values.get("stride"))
    return train, weft.data.pack_tokens(tokens[cut:], length) if len(tokens) - cut > length else None


def _graph(values: dict[str, Any], folder: Path) -> Parts:
    """One batch: features, edges and targets of all nodes. Nodes of `train` count in training, others in validation."""
    arrays = weft.data.load_arrays(folder / values["path"], mmap=False)
    names = ("x", "edge_index", "y", "train")
    missing = [name for name in names if name not in arrays]
    if missing:
        given = f"{values['path']!r} without {', '.join(missing)}"
        raise problem(
            ShapeError, "graph", given, "x [nodes, features], edge_index [2, edges], y [nodes], train [nodes]"
        )
    x, edges, y, train = (arrays[name] for name in names)
    x, edges, y = x.astype(np.float32), edges.astype(np.int64), y.astype(np.int64)
    parts = [[(x, edges, np.where(chosen, y, IGNORED))] for chosen in (train.astype(bool), ~train.astype(bool))]
    return parts[0], parts[1]


FIXED = ("validation",)  # data that have a part for validation
BATCHES = ("batch_size", "shuffle", "num_workers", "last", "transform")  # not of a graph, which is one batch
_TABLE: dict[str, Check] = {"features": _names, "standardize": _flag}

SOURCES: dict[str, Source] = {
    "digits": Source(_digits, {}, {"shape": _sizes}, FIXED),
    "csv": Source(_csv, {"path": _text, "target": _text}, {**_TABLE, "delimiter": _text}),
    "parquet": Source(_parquet, {"path": _text, "target": _text}, _TABLE),
    "arrays": Source(_arrays, {"path": _text}, {"inputs": _names, "target": _text}),
    "images": Source(
        _images, {"folder": _text, "size": _size_of_images}, {"mode": partial(locations.choice, choices=("RGB", "L"))}
    ),
    "mnist": Source(partial(_of_folder, "MNIST"), {"folder": _text}, {}, FIXED),
    "cifar10": Source(partial(_of_folder, "CIFAR10"), {"folder": _text}, {}, FIXED),
    "text": Source(
        _text_file,
        {"path": _text, "length": _count},
        {"stride": _count, "tokenizer": partial(locations.choice, choices=("char", "byte"))},
    ),
    "graph": Source(_graph, {"path": _text}, {}, (*FIXED, *BATCHES)),
}


def check(location: Location, tree: Any) -> dict[str, Any]:
    """The checked values of `data`."""
    given = locations.object_at(location, tree, "an object with a type")
    if "type" not in given:
        location.fail("no 'type'", f"one of {', '.join(SOURCES)}", "add 'type', such as 'digits'")
    source = SOURCES[locations.choice(location.at("type"), given["type"], SOURCES)]
    checks = source.checks()
    locations.check_keys(location, given, list(checks), ["type", *source.required])
    values = {key: checks[key](location.at(key), value) for key, value in given.items()}
    if "transform" in values:
        values["transform"] = [
            _transform(location.at("transform").at(k), one) for k, one in enumerate(values["transform"])
        ]
    return values


def _transform(location: Location, tree: Any) -> Any:
    """A transform of `weft.data.transforms` by name with its arguments."""
    given = (
        {"type": tree}
        if isinstance(tree, str)
        else locations.object_at(location, tree, "a name, or an object with a type")
    )
    if "type" not in given:
        location.fail("no 'type'", "the name of a transform")
    known = transforms_by_name()
    cls = known[locations.choice(location.at("type"), given.pop("type"), known)]
    return call(location, cls, given)


def transforms_by_name() -> dict[str, Any]:
    """The transforms that a file can name."""
    from weft.data import transforms

    return {
        name: one
        for name, one in vars(transforms).items()
        if isinstance(one, type)
        and issubclass(one, transforms.Transform)
        and one is not transforms.Transform
        and not name.startswith("_")
    }


def check_known(location: Location, tree: Any) -> dict[str, Any]:
    """What a run knows of its data, as a file beside its configuration keeps it."""
    known = locations.object_at(location, tree, "an object, as `weft train` writes it")
    for key in ("classes", "mean", "deviation", "dtypes"):
        if key in known:
            locations.array(location.at(key), known[key])
    for key in ("mean", "deviation"):
        for k, one in enumerate(known.get(key, [])):
            locations.number(location.at(key).at(k), one)
    for k, one in enumerate(known.get("dtypes", [])):
        locations.choice(location.at("dtypes").at(k), one, DTYPES)
    if "characters" in known:
        locations.string(location.at("characters"), known["characters"])
    if len(known.get("mean", [])) != len(known.get("deviation", [])):
        location.fail("a mean and a deviation of different sizes", "one of each for every feature")
    return known


def load(values: dict[str, Any], folder: Path, known: dict[str, Any], has_classes: bool) -> Parts:
    """The data sets of checked values. `known` is what a run knows of its data, and is filled; `has_classes` says
    whether the loss takes numbers of classes."""
    parts = SOURCES[values["type"]].make({**values, "known": known, "has_classes": has_classes}, folder)
    if len(parts[0]):
        known.setdefault("dtypes", [np.asarray(one).dtype.name for one in parts[0][0][:-1]])
    return parts
