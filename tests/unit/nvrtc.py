"""Compiles many kernels with NVRTC for several architectures, which needs neither a GPU nor a driver.

Kernels are printed together, a batch to a program, since a program costs more than a kernel; NVRTC releases the
interpreter, so batches are compiled concurrently. Time goes with the length of the text: 0.5 us to a character for the
front end, which has all warnings (`SYNTAX`), 1.3 us to PTX and 6 us to machine code (`QUICKLY`), 19 us as the backend
compiles. So large sets of kernels all go through the front end, and to machine code go those that `representatives`
chooses: together they have every form that occurs in the set. Which batches were compiled without a word is kept on
disk, as compiled kernels are: only what changed is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from weft.backends.cuda import compile as cuda_compile
from weft.base import disk
from weft.kernels.ir.language import Kernel
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
QUICKLY = "--Ofast-compile=max"  # everything is checked and made, little is optimised
SYNTAX = "--fdevice-syntax-only"  # the front end alone: every error and warning of the language, and no code
# A comparison of two constants is decided by NVRTC, which then misses the uses of what stood beside it. Values that the
# text itself does not use are looked for in test_clike.
DECIDED = "--diag-suppress=177"
BATCH = 40  # kernels, about
FORM = 4  # tokens: an operator or a function with its operands, and what they are operands of

TYPE = r"(?:unsigned |signed )?(?:long long|char|short|int|unsigned|float|double|bool)\*?"
DECLARED = re.compile(rf"\b({TYPE}) ([a-z]\w*)(?=[ ,)\[;])")
TOKEN = re.compile(r'"[^"]*"|0x\w+(?:\.\w*)?(?:p[+-]?\w+)?|\d[\w.]*(?:(?<=e)[+-]\w+)?|\w+|<<|>>|[<>=!+*/-]=|\+\+|\S')
SUFFIX = re.compile(r"[uUlLf]*$")


def forms(function: str) -> frozenset[tuple[str, ...]]:
    """Every `FORM` consecutive tokens of a kernel's function, with the types of variables instead of their names, and
    numbers without their values."""
    declared = {name: f"<{kind}>" for kind, name in DECLARED.findall(function)}

    @functools.cache
    def kind(token: str) -> str:
        if token[0].isdigit():
            suffix = SUFFIX.search(token)
            return f"{'0x' * token.startswith('0x')}{'.' * ('.' in token)}#{suffix[0] if suffix else ''}"
        return declared.get(token) or token

    tokens = [kind(token) for token in TOKEN.findall(function)]
    return frozenset(zip(*[tokens[first:] for first in range(FORM)], strict=False))


def representatives(kernels: Mapping[str, Kernel], known: set[tuple[str, ...]]) -> dict[str, Kernel]:
    """Some of the kernels, which have every form of all, short ones where there is a choice; without kernels that have
    none but `known` forms. All forms are known afterwards."""
    found: dict[str, frozenset] = {}
    sizes: dict[str, int] = {}
    for symbol, kernel in kernels.items():
        _, text = clike_module.render_with_symbols([kernel], CUDA)
        function = text[text.index('extern "C" __global__') :].replace(symbol, "kernel")
        found[symbol], sizes[symbol] = forms(function) - known, len(text)
    shortest: dict[tuple[str, ...], str] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for symbol in sorted(found, key=lambda symbol: (sizes[symbol], symbol)):
        counts.update(found[symbol])
        for form in found[symbol]:
            shortest.setdefault(form, symbol)
    chosen = {}
    for form in sorted(counts, key=lambda form: (counts[form], form)):  # a rare form decides which kernels there are
        if form not in known:
            symbol = shortest[form]
            chosen[symbol] = kernels[symbol]
            known |= found[symbol]
    return chosen


def said(source: str, architecture: str, *options: str) -> str:
    """What NVRTC has to say about a text: errors and warnings, or nothing."""
    from cuda.bindings import nvrtc

    words = (f"--gpu-architecture={architecture}", *cuda_compile.OPTIONS, DECIDED, *options)
    key = hashlib.sha256(f"silent|{cuda_compile.version()}|{words}|{source}".encode()).hexdigest()
    if disk.read(disk.OBJECT, key) is not None:
        return ""
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)  # bytes of length 1 are shared, and this is written to
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text = log.rstrip(b"\0").decode().strip()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return text or str(status)
    if not text:
        disk.write(disk.OBJECT, key, b"")
    return text


def batches(kernels: Mapping[str, Kernel], size: int = BATCH) -> list[list[Kernel]]:
    """The kernels by their names, which end in a hash: one that changes leaves most batches as they are."""
    count = len(kernels) // size + 1
    found: dict[int, list[Kernel]] = defaultdict(list)
    for symbol in sorted(kernels):
        found[int(symbol.rpartition("_")[2], 16) % count].append(kernels[symbol])
    return list(found.values())


def complaints(kernels: Mapping[str, Kernel], *options: str, architectures: Sequence[str] = ARCHITECTURES) -> list[str]:
    """Every kernel that NVRTC does not compile without a word: its name, the words, its text."""

    def compiled(job: tuple[tuple[list[Kernel], str], str]) -> list[str]:
        (batch, together), architecture = job
        if not said(together, architecture, *options):
            return []
        found = []
        for kernel in batch:
            (symbol,), text = clike_module.render_with_symbols([kernel], CUDA)
            words = said(text, architecture, *options)
            if words:
                found.append(f"{symbol} for {architecture}: {words}\n{text}")
        return found

    texts = [(batch, clike_module.render_all(batch, CUDA)) for batch in batches(kernels)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [text for found in pool.map(compiled, product(texts, architectures)) for text in found]
