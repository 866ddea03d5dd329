"""Builds the wheel and the source distribution, and uses each in a fresh virtual environment outside of the checkout.

`make dist` writes them to dist/. In each environment the package is installed by pip, with its requirements and nothing
else; then ten lines train, the package data is read, the command line works, and `weft doctor` finds no fault.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "dist"
# What users read beside Python files, and what the source distribution needs to be built from.
IN_WHEEL = ("weft/py.typed", "weft/data/digits.npz", "weft/names/functions.pyi", "weft/core/methods.pyi")
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "weft/__init__.py")

CHECK = """
import importlib.resources, pathlib, weft
assert pathlib.Path(weft.__file__).is_relative_to({environment!r}), weft.__file__
from weft.data import digits
for name in {names!r}:
    assert importlib.resources.files("weft").joinpath(name.removeprefix("weft/")).is_file(), name
assert digits.load("train")[0].shape == (1442, 64)
weft.nn.from_config  # reads its samples and schemas lazily
"""


def ten_lines() -> str:
    """The README's first Python block."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert found, "the README has no Python block"
    return found[1]


def package_data() -> list[str]:
    """Every file of the package that is not Python code, as the checkout has it."""
    listed = subprocess.run(["git", "ls-files", "weft"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if not name.endswith(".py")]


def build() -> tuple[Path, Path]:
    """The wheel, which is made from the source distribution, and the source distribution."""
    shutil.rmtree(TARGET, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(TARGET), str(ROOT)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    (wheel,) = TARGET.glob("*.whl")
    (source,) = TARGET.glob("*.tar.gz")
    return wheel, source


def check_contents(wheel: Path, source: Path) -> None:
    """Package data is in both, and nothing but the package is in the wheel."""
    wheel_names = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(source) as archive:
        source_names = [name.partition("/")[2] for name in archive.getnames()]
    for name in (*IN_WHEEL, *package_data()):
        assert name in wheel_names, f"{wheel.name} lacks {name}"
        assert name in source_names, f"{source.name} lacks {name}"
    for name in IN_SDIST:
        assert name in source_names, f"{source.name} lacks {name}"
    others = [name for name in wheel_names if not name.startswith("weft/") and ".dist-info/" not in name]
    assert not others, f"{wheel.name} has {others[:5]}"


def use(package: Path) -> None:
    """Installs the file into a new environment and uses it there."""
    with tempfile.TemporaryDirectory(prefix="weft-dist-") as folder:
        environment = Path(folder) / "environment"
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        python = str(environment / "bin" / "python")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WEFT_"))}
        clean["WEFT_CACHE_DIR"] = str(Path(folder) / "cache")

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{package.name}: {' '.join(command)[:200]}\n{done.stdout}{done.stderr}")
            return done.stdout

        run(python, "-m", "pip", "install", "--quiet", str(package))
        run(python, "-W", "error", "-c", CHECK.format(environment=str(environment.resolve()), names=package_data()))
        (Path(folder) / "ten_lines.py").write_text(ten_lines())
        printed = run(python, "-W", "error", "ten_lines.py")
        assert "accuracy=" in printed, printed
        run(str(environment / "bin" / "weft"), "doctor")
        size = package.stat().st_size / 1e6
        print(f"{package.name}: {size:.2f} MB, installed, imported, trained; doctor found no fault")


def main() -> None:
    wheel, source = build()
    check_contents(wheel, source)
    for package in (wheel, source):
        use(package)


if __name__ == "__main__":
    main()
