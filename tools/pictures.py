"""The pictures of the documentation: `make pictures` writes them to docs/images, a test compares them.

`training-step.svg` is drawn from the plan of a real training step: its kernels in the order in which they run, and the
layers and phases that each computes for, as `weft.profile` attributes them. `pipeline.svg` shows the stages of
docs/architecture.md; every file named in it exists.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import weft  # noqa: E402
from weft import nn  # noqa: E402
from weft.data import digits  # noqa: E402
from weft.drawing.style import colour, escape, picture, shorten, text, text_width  # noqa: E402

FOLDER = ROOT / "docs" / "images"
PHASES = ("forward", "backward", "update")
PHASE_COLOURS = {"forward": 0, "backward": 1, "update": 2}
CLIPPING = "clip_grad_norm_"

# Stages: title, what happens, files. Each row of the picture has a heading and its stages.
ROWS: tuple[tuple[str, tuple[tuple[str, str, tuple[str, ...]], ...]], ...] = (
    (
        "Record: at every call, nothing is computed",
        (
            ("Tensor", "checks arguments at your line", ("core/tensor.py", "ops/registry.py")),
            ("Graph", "interned nodes of primitives", ("graph/primitives.py", "grad/rules.py")),
            ("Program", "a graph with numbered leaves", ("compiler/program.py", "jit/compiled.py")),
        ),
    ),
    (
        "Compile: once per form of the program, then from memory or disk",
        (
            ("Simplify", "rules that keep every bit", ("passes/simplify.py", "passes/expand.py")),
            ("Canonicalize", "fixes the order of additions", ("passes/canonicalize.py",)),
            ("Fuse", "one region per kernel", ("fusion/fuse.py", "fusion/roots.py")),
            ("Allocate", "slots and one arena", ("memory/allocate.py",)),
            ("Lower", "region to loop nest", ("lowering/lower.py", "lowering/nests.py")),
            ("Schedule", "nest to kernel", ("cpu/schedule.py", "gpu/schedule.py")),
            ("Emit", "kernels to steps", ("lowering/emit.py",)),
            ("Render", "kernel to text", ("llvm/module.py", "clike/module.py")),
        ),
    ),
    (
        "Run: at every step",
        (
            ("Plan", "launches over slots, as data", ("plan/plan.py",)),
            ("CPU", "one native call per step", ("cpu/runtime.py",)),
            ("GPU", "one recorded graph per step", ("gpu/execution.py",)),
        ),
    ),
)


def box(x: float, y: float, wide: float, high: float, series: int | str, opacity: float = 0.16, title: str = "") -> str:
    """A rectangle with round corners in a colour of the pictures."""
    about = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="5" fill="{colour(series)}" '
        f'fill-opacity="{opacity:g}" stroke="{colour(series)}" stroke-width="1.2">{about}</rect>'
    )


def arrow(points: Sequence[tuple[float, float]]) -> str:
    """A line with a head."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour("soft")}" stroke-width="1.4" marker-end="url(#head)"/>'
    )


HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0 L8,4 L0,8 z" fill="{colour("soft")}"/></marker></defs>'
)


def pipeline() -> str:
    """The stages from an expression to running kernels."""
    width, margin, top, high, apart = 1250, 36, 74, 96, 66
    out = [HEAD, text(margin, 28, "From an expression to running kernels", size=15, bold=True)]
    last: tuple[float, float] | None = None
    for row, (heading, stages) in enumerate(ROWS):
        y = top + row * (high + apart)
        gap = 20 if len(stages) > 3 else 60
        wide = (width - 2 * margin - gap * (len(stages) - 1)) / len(stages) if len(stages) > 3 else 240
        out.append(text(margin, y - 9, heading, fill="soft", size=12.5, bold=True))
        if last is not None:  # from the last stage of the row above to the first of this one
            x, bottom = last
            bend, gutter = bottom + 20, margin / 2 - 2
            out.append(arrow([(x, bottom), (x, bend), (gutter, bend), (gutter, y + 18), (margin - 3, y + 18)]))
        for number, (title, about, files) in enumerate(stages):
            x = margin + number * (wide + gap)
            out.append(box(x, y, wide, high, row))
            out.append(text(x + 9, y + 22, title, size=13, bold=True))
            for line, words in enumerate(wrapped(about, wide - 14, 11)):
                out.append(text(x + 9, y + 40 + 14 * line, words, size=11))
            for line, name in enumerate(files):
                out.append(text(x + 9, y + high - 9 - 13 * (len(files) - 1 - line), name, fill="soft", size=9.5))
            if title == "GPU":  # a plan runs on one of the two
                out.append(text(x - gap / 2, y + 22, "or", "middle", "soft"))
            elif number:
                out.append(arrow([(x - gap + 2, y + 18), (x - 3, y + 18)]))
        last = (margin + (len(stages) - 1) * (wide + gap) + wide / 2, y + high + 2)
    return picture(width, top + 3 * (high + apart) - apart + 14, "From an expression to running kernels", out)


def wrapped(words: str, width: float, size: float) -> list[str]:
    """The words in lines of at most that width."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


Kernel = tuple[str, dict[tuple[str, str], float]]  # its name, its shares by (layer, phase)


def training_kernels() -> tuple[list[str], list[Kernel]]:
    """The layers of the README's network, from its input on, and the kernels of one training step in their order."""
    weft.manual_seed(0)
    images, labels = (weft.tensor(array[:64]) for array in digits.load("train"))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = weft.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    titles = {str(number): f"{number}: {type(layer).__name__}" for number, layer in enumerate(model)}
    titles |= {"outside of modules": CLIPPING}
    kernels: list[Kernel] = []
    for kernel in weft.profile(step, images, labels).kernels:
        shares: dict[tuple[str, str], float] = {}
        for part in kernel.layers:
            layer = titles.get(part.layer, part.layer)
            key = layer, "update" if layer == CLIPPING else part.phase
            shares[key] = shares.get(key, 0.0) + part.share
        kernels.append((kernel.name, shares))
    return [*(titles[str(number)] for number in range(3)), "CrossEntropyLoss", CLIPPING, "AdamW"], kernels


def training_step() -> str:
    """One training step as its plan: kernels from left to right, what each computes for from top to bottom."""
    layers, kernels = training_kernels()
    left, top, wide, row, margin = 142, 64, 68, 34, 16
    width, ground = left + len(kernels) * wide + margin, top + len(layers) * row
    title = f"One training step is one plan of {len(kernels)} kernels"
    out = [text(margin, 27, title, size=15, bold=True)]
    x = left
    for phase in PHASES:
        out.append(box(x, 39, 12, 12, PHASE_COLOURS[phase], 0.55))
        out.append(text(x + 18, 49.5, phase, fill="soft", size=11.5))
        x += 96
    out.append(
        text(x, 49.5, "a column with several cells is one kernel fused across layers or phases", fill="soft", size=11.5)
    )
    for number, layer in enumerate(layers):
        y = top + number * row
        out.append(f'<line x1="{margin}" x2="{width - margin}" y1="{y}" y2="{y}" stroke="{colour("line")}"/>')
        out.append(text(margin, y + row / 2 + 4, layer))
    out.append(f'<line x1="{margin}" x2="{width - margin}" y1="{ground}" y2="{ground}" stroke="{colour("line")}"/>')
    for number, (name, shares) in enumerate(kernels):
        x = left + number * wide
        rows = sorted({layers.index(layer) for layer, _ in shares})
        if len(rows) > 1:
            high = (rows[-1] - rows[0]) * row
            out.append(f'<rect x="{x + wide / 2 - 2:.1f}" y="{top + rows[0] * row + row / 2:.1f}" width="4" '
                       f'height="{high}" fill="{colour("soft")}"/>')  # fmt: skip
        for index in rows:
            phases = [phase for phase in PHASES if (layers[index], phase) in shares]
            part = (wide - 10) / len(phases)
            for place, phase in enumerate(phases):
                y = top + index * row + 5
                at = x + 5 + place * part
                out.append(f'<rect x="{at:.1f}" y="{y}" width="{part:.1f}" height="{row - 10}" rx="3" '
                           f'fill="{colour("paper")}"/>')  # fmt: skip
                about = f"{name}: {phase} of {layers[index]}"
                out.append(box(at, y, part, row - 10, PHASE_COLOURS[phase], 0.55, about))
        out.append(text(x + wide / 2, ground + 17, str(number + 1), "middle", "soft", 11))
        label = shorten(name.replace("_", " "), 150, 10)
        corner = f"translate({x + wide / 2 - 3:.1f},{ground + 28}) rotate(35)"
        out.append(f'<g transform="{corner}">{text(0, 6, label, size=10)}</g>')
    out.append(text(margin, ground + 17, "kernel", fill="soft", size=11))
    return picture(width + 90, ground + 132, title, out)


PICTURES = {"pipeline.svg": pipeline, "training-step.svg": training_step}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
        print((FOLDER / name).relative_to(ROOT))


if __name__ == "__main__":
    main()
