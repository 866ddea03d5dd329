"""`weft doctor`: what Weft finds on this machine, how to get what is missing, and a test that it computes rightly."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import weft
import weft.nn.functional as F
from weft.backends.registry import BACKENDS, PLANNED, load
from weft.base import disk
from weft.base.dtypes import ALL
from weft.cli.devices import NOT_COMPUTING
from weft.compiler.memory.report import size_text
from weft.plan import kept_tuning
from weft.plan.device import Device, memory_text

GOOD, BAD, LATER, NOTHING = Text("ok", "green"), Text("no", "red"), Text("-", "dim"), Text("")
TOLERANCE = 1e-4

LIBRARIES = ("cpu.blas", "cuda.cublaslt", "cuda.cudnn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes nothing."""


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the findings; 1 if Weft cannot be trusted here."""
    healthy = True
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, mark, text in findings():
        healthy = healthy and mark is not BAD
        table.add_row(mark, name, Text(text))  # no markup: brackets are the text's own
    console.print(table)
    console.print("Weft works here." if healthy else "Something is wrong: see the lines marked 'no'.")
    return 0 if healthy else 1


def findings() -> Iterator[tuple[str, Text, str]]:
    """(what, how it is, in words) for everything that Weft depends on."""
    yield "python", GOOD, f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "weft", GOOD, weft.__version__
    yield "numpy", GOOD, np.__version__
    yield _llvm()
    computing = []
    for kind in BACKENDS:
        for name, mark, text in _backend(kind):
            yield name, mark, text
            if mark is GOOD and kind not in NOT_COMPUTING:
                computing.append(name)
    yield from _libraries()
    for name in PLANNED:
        yield name, LATER, "no backend in this version; it comes with a later release"
    yield _cache()
    yield _check_retained_results()
    for name in computing:
        yield _self_test(name)


def _llvm() -> tuple[str, Text, str]:
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        return "llvmlite", BAD, f"{error}. Install it: pip install 'llvmlite>=0.50'"
    version = ".".join(map(str, llvm.llvm_version_info))
    return "llvmlite", GOOD, f"{importlib.metadata.version('llvmlite')} (LLVM {version})"


def _backend(kind: str) -> Iterator[tuple[str, Text, str]]:
    """Every device of one type; where there is none, what it would take."""
    try:
        backend = load(kind)
        found = backend.devices()
    except Exception as error:
        yield kind, BAD, f"{type(error).__name__}: {error}"
        return
    if not found:
        yield kind, LATER, backend.reason
    for number in range(len(found)):
        try:
            device = found[number]  # which opens it
        except Exception as error:
            yield f"{kind}:{number}", BAD, f"{type(error).__name__}: {error}"
            continue
        yield device.name, GOOD, _name(device)
        if kind not in NOT_COMPUTING:
            for title, text in _properties(device):
                yield "", NOTHING, f"{title}: {text}"


def _name(device: Device) -> str:
    """What a device is, and through which driver."""
    text = device.description
    if device.kind == "cpu":
        from weft.backends.cpu.worker_team import thread_count

        count = thread_count()
        text += f", {count} thread{'s' if count > 1 else ''} (WEFT_NUM_THREADS)"
    if device.api and device.api not in text.lower():
        text += f", through {device.api}"
    if device.is_software:
        text += ". Software: emulates a GPU on the CPU, and is used only where it is named"
    return text


def _properties(device: Device) -> Iterator[tuple[str, str]]:
    yield "memory", "{}, {} free".format(*memory_text(device))
    yield "dtypes", _dtypes(device)
    yield "features", ", ".join(device.features.describe())
    if device.features.workgroups:
        yield "limits", ", ".join(device.limits.describe())
    yield "tuning", _tuning(device)
    if device.libraries:
        yield "libraries", ", ".join(f"{name} {one.version}" for name, one in device.libraries.items())


def _tuning(device: Device) -> str:
    """Whether `weft tune` found something for the device."""
    if device.class_tuning is not None:
        names = ", ".join(kept_tuning.changes_of(device.tuning, device.class_tuning))
        return f"found by weft tune ({names})"
    damaged = kept_tuning.file_of(device)
    if damaged is not None:
        return f"{damaged} is ignored: it is damaged, or another user may have written it. Run: weft tune"
    return f"the defaults of its class; weft tune --device {device.name} searches faster ones"


def _dtypes(device: Device) -> str:
    missing = [dtype.name for dtype in ALL if dtype not in device.dtypes]
    return "all" + (f" but {', '.join(missing)}" if missing else "")


def _libraries() -> Iterator[tuple[str, Text, str]]:
    """Every module of LIBRARIES says what it found with `find()`, or why nothing with `reason()`."""
    for name in LIBRARIES:
        library = importlib.import_module(f"weft.backends.{name}")
        found = library.find()
        if found is None:
            yield name.rpartition(".")[2], LATER, library.reason()
        else:
            yield name.rpartition(".")[2], GOOD, os.path.basename(getattr(found, "path", "found"))


def _cache() -> tuple[str, Text, str]:
    folder = disk.folder()
    if folder is None:
        return "cache", LATER, "none: this user has no home directory. Set WEFT_CACHE_DIR to keep compiled plans"
    wrong = disk.explain_distrust()
    if wrong:
        return "cache", BAD, f"not used, so every process compiles again. {wrong}"
    try:
        disk.make_folder()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return "cache", LATER, f"{folder} cannot be written ({error.strerror}): every process compiles again"
    foreign = disk.find_foreign_files()
    if foreign:
        some = f"{foreign[0]} and {len(foreign) - 1} more are" if len(foreign) > 1 else f"{foreign[0]} is"
        return "cache", BAD, f"{some} not used: a link, or somebody else may have written it. Run: weft cache clear"
    limit = os.environ.get("WEFT_CACHE_LIMIT")
    if limit and disk.limit_from_environment() is None:
        return (
            "cache",
            BAD,
            f"WEFT_CACHE_LIMIT is {limit!r}, which is no size and counts as not set. Set it to 500M, say",
        )
    used = sum(file.nbytes for file in disk.files())
    return "cache", GOOD, f"{folder}, {size_text(used)} of {size_text(disk.limit())}"


def _check_retained_results() -> tuple[str, Text, str]:
    """Results that are retained keep their values: it depends on how this interpreter refers to objects."""
    from weft.cli.retained import SIZES, all_checks, failures

    started, failed = time.perf_counter(), list(failures())
    seconds = time.perf_counter() - started
    if failed:
        name, wrong = failed[0]
        how = "`python -m weft.cli.retained` lists them"
        return "results", BAD, f"{len(failed)} checks of retained results fail ({how}), first {name}: {wrong}"
    count = len(all_checks()) * len(SIZES)
    return "results", GOOD, f"that are retained keep their values in {count} checks, {seconds:.2f} s"


def training_step(device: str) -> list[np.ndarray]:
    """The loss and the parameters after three steps of a small classifier on `device`."""
    with weft.device(device):
        rng = np.random.default_rng(0)
        shapes = ((20, 16), (16,), (16, 5), (5,))
        parameters = [weft.tensor(rng.normal(0, 0.3, s).astype(np.float32), requires_grad=True) for s in shapes]
        x, y = weft.tensor(rng.normal(0, 1, (24, 20)).astype(np.float32)), weft.tensor(rng.integers(0, 5, 24))
        optimizer = weft.optim.Adam(parameters, lr=0.01)

        def step() -> weft.Tensor:
            w1, b1, w2, b2 = parameters
            loss = F.cross_entropy((x @ w1 + b1).tanh() @ w2 + b2, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        call = step if device == "reference" else weft.compile(step)
        losses = [call().numpy() for _ in range(3)]
        return [*losses, *[parameter.numpy() for parameter in parameters]]


def _self_test(name: str) -> tuple[str, Text, str]:
    started = time.perf_counter()
    try:
        results = zip(training_step(name), training_step("reference"), strict=True)
        error = max(float(np.abs(one - two).max()) for one, two in results)
    except Exception as problem:
        return "self-test", BAD, f"on {name}: {type(problem).__name__}: {problem}"
    seconds = time.perf_counter() - started
    text = (
        f"three training steps on {name} against the NumPy reference: largest difference {error:.1e}, {seconds:.2f} s"
    )
    return "self-test", GOOD if error < TOLERANCE else BAD, text
