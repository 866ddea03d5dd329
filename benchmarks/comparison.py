"""The README's table against PyTorch, JAX and tinygrad: what can be checked by a command, for each that is installed.

`python benchmarks/comparison.py --json FILE` measures, in fresh processes in alternating rounds: the installed size of
a framework with everything that it requires, the processor time of its import, whether a compiled function has the bits
of the uncompiled one, and whether one and two threads give the same bits. Frameworks that are not installed, or have no
device here, are left out. `--no-times` leaves the import out, on a busy machine; benchmarks/run.py measures speed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"weft": "weft", "torch": "torch", "jax": "jax", "tinygrad": "tinygrad"}  # name -> what pip calls it
ROUNDS = 7
PROGRAM = "softmax(gelu(layer_norm(x))) of 513 x 1000 float32, and the gradient of its weighted sum in x"


def requirements(name: str) -> list[importlib.metadata.Distribution]:
    """The distribution and all that it requires here, without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        key = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if key in found:
            continue
        try:
            found[key] = importlib.metadata.distribution(key)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        for line in found[key].requires or ():
            requirement, _, marker = line.partition(";")
            if "extra" not in marker:
                waiting.append(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]
    return list(found.values())


def installed_bytes(one: importlib.metadata.Distribution) -> int:
    """The size of the files of a distribution, without compiled Python; a checkout counts by its package folder."""
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        paths = [path for path in (ROOT / "weft").rglob("*") if path.is_file()]
    else:
        paths = [Path(str(one.locate_file(path))) for path in one.files or ()]
    return sum(path.stat().st_size for path in paths if path.suffix != ".pyc" and path.is_file())


def _digest(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def _arrays() -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    return tuple(random.standard_normal((513, 1000)).astype(np.float32) for _ in range(2))  # type: ignore[return-value]


def weft_bits(threads: int) -> dict[str, str]:
    import weft
    import weft.nn.functional as F

    def program(x: Any, weight: Any) -> Any:
        out = F.softmax(F.gelu(F.layer_norm(x, (1000,))), -1)
        return out, weft.grad((out * weight).sum(), x)[0]

    weft.set_num_threads(threads)
    x, weight = (weft.tensor(array) for array in _arrays())
    x.requires_grad_()
    return {kind: _digest(*(one.detach().numpy() for one in fn(x, weight)))
            for kind, fn in (("eager", program), ("compiled", weft.compile(program)))}  # fmt: skip


def torch_bits(threads: int) -> dict[str, str]:
    import torch
    import torch.nn.functional as F

    def program(x: Any, weight: Any) -> Any:
        out = F.softmax(F.gelu(F.layer_norm(x, (1000,))), -1)
        return out

    torch.set_num_threads(threads)
    x, weight = (torch.tensor(array) for array in _arrays())
    x.requires_grad_()
    found = {}
    for kind, fn in (("eager", program), ("compiled", torch.compile(program))):
        out = fn(x, weight)
        (gradient,) = torch.autograd.grad((out * weight).sum(), x)
        found[kind] = _digest(out.detach().numpy(), gradient.numpy())
    return found


def jax_bits(threads: int) -> dict[str, str]:
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import numpy as np

    def forward(x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        normal = (x - mean) / jax.numpy.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        return jax.nn.softmax(jax.nn.gelu(normal, approximate=False), -1)

    def program(x: Any, weight: Any) -> Any:
        out, pull = jax.vjp(forward, x)
        return out, pull(weight)[0]

    x, weight = (jax.numpy.asarray(array) for array in _arrays())
    return {kind: _digest(*(np.asarray(one) for one in fn(x, weight)))
            for kind, fn in (("eager", program), ("compiled", jax.jit(program)))}  # fmt: skip


BITS: dict[str, Callable[[int], dict[str, str]]] = {"weft": weft_bits, "torch": torch_bits, "jax": jax_bits}


def _child(*arguments: str) -> str:
    """What this file prints when it is run with these arguments in a fresh process, beside a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"WEFT_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__).resolve()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder).stdout


def measure(frameworks: list[str], rounds: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """Everything, by framework."""
    found: dict[str, dict[str, Any]] = {}
    for name in frameworks:
        parts = requirements(FRAMEWORKS[name])
        found[name] = {
            "version": importlib.metadata.version(FRAMEWORKS[name]),
            "installed_megabytes": round(sum(installed_bytes(one) for one in parts) / 1e6, 1),
            "packages": sorted(one.metadata["Name"] for one in parts),
        }
    for _ in range(rounds):
        for name in frameworks:
            found[name].setdefault("import_cpu_seconds", []).append(float(_child("--import", name)))
    for name in frameworks:
        if name in BITS:
            one, two = (json.loads(_child("--bits", name, "--threads", str(count))) for count in (1, 2))
            found[name]["compiled_has_the_bits_of_eager"] = two["eager"] == two["compiled"]
            for kind in ("eager", "compiled"):
                found[name][f"{kind}_bits_are_the_same_for_one_and_two_threads"] = one[kind] == two[kind]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument("--no-times", action="store_true", help="only what does not depend on how busy the machine is")
    parser.add_argument("--import", dest="imported", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--bits", choices=BITS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.imported:
        begin = time.process_time()
        __import__(arguments.imported)
        print(time.process_time() - begin)
        return
    if arguments.bits:
        print(json.dumps(BITS[arguments.bits](arguments.threads)))
        return
    here = [name for name, package in FRAMEWORKS.items() if requirements(package)]
    found = measure(here, 0 if arguments.no_times else ROUNDS)
    if arguments.json:
        record = {"date": time.strftime("%Y-%m-%d"), "python": sys.version.split()[0], "cores": os.cpu_count(),
                  "program": PROGRAM, "frameworks": found}  # fmt: skip
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n")
    for name, one in found.items():
        print(f"{name} {one['version']}: {one['installed_megabytes']} MB in {len(one['packages'])} packages")
        if "import_cpu_seconds" in one:
            print(f"  import: {min(one['import_cpu_seconds']):.3f} s of processor time")
        for question in sorted(one.keys() - {"version", "installed_megabytes", "packages", "import_cpu_seconds"}):
            print(f"  {question.replace('_', ' ')}: {one[question]}")


if __name__ == "__main__":
    main()
