"""Who may import whom (DESIGN section 2), what `import weft` costs and what it must not load."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2] / "weft"

# Package -> what its modules may import, beside `base` and the package itself. A dotted name allows that module only.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "graph": set(),
    "ops": {"graph"},
    "grad": {"graph"},
    "kernels": set(),
    "render": {"kernels"},
    "plan": {"kernels"},
    "compiler": {"graph", "kernels", "plan"},
    "backends": {"plan", "kernels", "render"},
    "core": {"graph", "ops", "plan", "compiler", "backends"},
    "autograd": {"graph", "grad", "plan", "core"},
    "jit": {"graph", "plan", "compiler", "core", "autograd"},
    "random": {"graph", "ops", "plan", "core"},
    "functional": {"graph", "ops", "grad", "compiler", "core", "autograd", "random"},
    "names": {"graph", "ops", "core", "random", "functional"},
}
TENSOR = {"core", "autograd", "jit", "random", "functional", "names", "tensor"}  # what users hold and call
ALLOWED |= {
    "tensor": TENSOR,  # the public modules beside the packages
    "signal": TENSOR | {"ops"},
    "nn": TENSOR,
    "optim": TENSOR,
    "data": TENSOR,
    "utils": TENSOR | {"data"},
    "serialization": TENSOR | {"nn"},
    "amp": TENSOR | {"optim", "plan.device"},
    "cuda": TENSOR | {"amp", "plan.device"},
    "drawing": TENSOR | {"nn"},
    "profiling": TENSOR | {"nn", "plan", "compiler", "backends"},
    "train": TENSOR | {
        "nn", "optim", "data", "amp", "serialization", "drawing", "report", "compiler.memory.report", "plan.device",
    },
    "report": TENSOR | {"nn", "drawing", "profiling", "plan", "compiler"},
    "config": TENSOR | {"nn", "optim", "data", "train"},
}  # fmt: skip
ALLOWED["cli"] = set(ALLOWED) - {"base", "graph", "ops", "grad", "kernels", "render"}  # the top of everything
USERS = {"nn", "optim", "data", "serialization", "amp", "drawing", "profiling", "train", "report", "config", "cli"}
# What single modules may import beyond their package: the interpreter runs graphs, not plans; users write kernels; a
# vendor's library offers nodes in place of others.
LIBRARY = {"graph", "compiler.passes.library_calls", "compiler.fusion.index_map"}
EXTRA = {
    "backends.reference": {"graph"},
    "functional.custom_kernel": {"kernels"},
    "optim.averaged_model": {"nn"},
    "nn.module.module": {"serialization", "config.describe"},  # Module.save, load and to_config
    "data.transforms.geometry": {"nn"},
    "data.transforms.mixtures": {"nn"},
    "data.cifar": {"serialization.pickle_calls", "serialization.pickles"},
    "train.class_metrics": {"graph.build", "ops.indexing"},  # labels are checked inside the step
    "backends.cuda.cudnn": LIBRARY,
}
# Packages of extras by the name they are imported under, where it differs from the package's, and by the extra.
OPTIONAL = {
    "cuda": {"cuda": "cuda-bindings", "nvmath": "nvmath-python", "cudnn": "nvidia-cudnn-frontend"},
    "hip": {"hip": "hip-python", "rocm": "hip-python"},
    "opencl": {"pyopencl": "pyopencl"},
    "webgpu": {"wgpu": "wgpu"},
}
# The top-level package is the table of contents, and the demo is a user.
UNCHECKED = {"", "demo", "__main__"}

HEAVY = ("llvmlite", "torch", "jax", "cuda", "pyopencl", "wgpu", "hip", "rich", "scipy", "weft.demo", "weft.cli")


def modules() -> dict[str, Path]:
    """Every module under weft/ by its name without the leading `weft.`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(name: str) -> str:
    """The room of a module name (without `weft.`). Modules beside the folders are `tensor`: what the user holds."""
    head = name.split(".")[0]
    return head if head in ALLOWED else "tensor"


def imported(name: str, path: Path) -> set[str]:
    """The modules of Weft that a module imports anywhere in its text, type-checking blocks left out."""
    found: set[str] = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in _running_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {_strip(alias.name) for alias in node.names if _is_weft(alias.name)}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            elif node.module and _is_weft(node.module):
                base = _strip(node.module)
            else:
                continue
            # `from weft.graph import node` names a module, `from weft.graph.node import Node` something inside one.
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                found.add(full if full in MODULES else base)
    return found


def _running_nodes(tree: ast.AST):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from _running_nodes(other)
            continue
        yield node
        yield from _running_nodes(node)


def _is_weft(name: str) -> bool:
    return name == "weft" or name.startswith("weft.")


def _strip(name: str) -> str:
    return name.removeprefix("weft").lstrip(".")


def complaint(name: str, target: str) -> str | None:
    """Why module `name` may not import `target`, or None."""
    room, other = room_of(name), room_of(target)
    if target == "":
        return None if room in USERS else "the package itself is for users, not for its rooms"
    if other == "base" or other == room:
        return None
    allowed = ALLOWED[room] | EXTRA.get(name, set())
    if other in allowed or any(target == entry or target.startswith(entry + ".") for entry in allowed):
        return None
    return f"{room} may import {sorted(allowed) or 'base rooms only'}"


@pytest.mark.parametrize("name", [name for name in MODULES if name not in UNCHECKED])
def test_import_rule(name):
    wrong = {target: complaint(name, target) for target in sorted(imported(name, MODULES[name]))}
    assert not {target: why for target, why in wrong.items() if why}


def test_the_rule_has_teeth():
    assert complaint("graph.node", "ops.reduce")
    assert complaint("kernels.cpu", "graph.node")
    assert complaint("backends.cpu", "graph.primitives")
    assert complaint("backends.reference", "graph.primitives") is None
    assert complaint("nn.functional", "compiler.plan")
    assert complaint("dtypes", "graph.node")
    assert complaint("compiler.fuse", "tensor")
    assert complaint("tensor", "cli.doctor") and complaint("nn.functional", "cli")


def test_what_is_imported_is_declared():
    """Packages that the text imports, and no others, are dependencies in pyproject.toml."""
    used = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                used |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                used.add((node.module or "").split(".")[0])
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    declared = {re.match(r"[a-zA-Z_0-9-]+", text)[0] for text in project["dependencies"]}
    for extra, packages in OPTIONAL.items():
        listed = {re.match(r"[a-zA-Z_0-9-]+", text)[0] for text in project["optional-dependencies"][extra]}
        assert set(packages.values()) <= listed
        used -= set(packages)
    assert used - set(sys.stdlib_module_names) - {"weft"} == declared


# Functions with the name of a package or file that is always imported before them, so that nothing rebinds the name.
SHADOWING = {"weft": {"grad"}, "weft.cli": {"main"}}


def test_no_exported_name_is_also_a_file_or_folder():
    """Importing `weft.config.schema`, the file, would replace `weft.config.schema`, the function; a folder without
    `__init__.py` is a package, too."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("__init__.py")):
        package = ".".join(path.parent.relative_to(ROOT.parent).parts)
        beside = {one.stem for one in path.parent.iterdir() if one.is_dir() or one.suffix == ".py"}
        module = importlib.import_module(package)
        names = beside & set(dir(module)) - {"__init__", "__pycache__"}
        hidden = {name for name in names if not inspect.ismodule(getattr(module, name))}
        if hidden:
            found[package] = hidden
    assert found == SHADOWING
    code = "import weft, weft.grad.rules, weft.cli.main; print(callable(weft.grad), callable(weft.cli.main))"
    assert run_python(code).split() == ["True", "True"]


def run_python(code: str, **environment: str) -> str:
    env = os.environ | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout


def test_import_loads_nothing_slow():
    loaded = set(json.loads(run_python("import sys, json, weft; print(json.dumps(list(sys.modules)))")))
    assert not [name for name in HEAVY if name in loaded]


@pytest.mark.serial
def test_import_takes_less_than_300_ms(tmp_path):
    """One of ten tries, NumPy's import included, the interpreter's start not; on a slow machine less than six times
    what NumPy's import takes there (4.4 to 4.8 times were measured). Time of the processor, which waiting for it on a
    busy machine does not count. Bytecode is there, as after an installation: the first try writes it."""
    code = (
        "import time; start = time.process_time(); import numpy; middle = time.process_time(); import weft;"
        "print(middle - start, time.process_time() - start)"
    )
    installed = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}

    def is_fast() -> bool:
        numpy, both = map(float, run_python(code, **installed).split())
        return both < max(0.3, 6 * numpy)

    assert any(is_fast() for _ in range(10))
