"""A run as one HTML page. Everything is inline, nothing runs, colours follow the viewer's preference."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from weft.base.errors import size_text
from weft.drawing.charts import bar_chart, line_chart
from weft.drawing.memory import memory_map
from weft.drawing.style import number_text, variables
from weft.profiling.tables import count_text, percent, rate_text, seconds_text, share_text
from weft.report.files import Run, Series, number

MAX_KERNELS = 40  # in the table
MAX_SIZE = 1 << 60  # bytes, elements or steps that a file can speak of
LOG_FROM = 100.0  # largest over smallest loss from which the axis is logarithmic
COUNTS = ("epoch", "step", "seconds")  # columns that are no measurements
WORDS = {"lr": "learning rate", "wait_seconds": "seconds waiting for data"}  # titles of columns
STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--w-paper);color:var(--w-ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,
'Liberation Sans',sans-serif}
main{max-width:1320px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:26px;margin:0 0 2px}h2{font-size:19px;margin:40px 0 12px;border-bottom:1px solid var(--w-line);
padding-bottom:6px}
p{margin:6px 0}.soft{color:var(--w-soft)}
nav{margin:14px 0 0;display:flex;flex-wrap:wrap;gap:6px 16px}nav a{color:var(--w-c0);text-decoration:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:22px 0 0}
.tile{border:1px solid var(--w-line);border-radius:8px;padding:10px 14px;background:var(--w-panel)}
.tile b{display:block;font-size:20px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tile span{color:var(--w-soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:16px}
.figure{border:1px solid var(--w-line);border-radius:8px;padding:8px;overflow-x:auto;background:var(--w-paper)}
.figure svg{max-width:100%;height:auto;display:block;margin:0 auto}.tall svg{max-width:none}
.tall{max-height:760px;overflow:auto}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;width:100%}
th{text-align:left;color:var(--w-soft);font-weight:600;white-space:nowrap}
th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--w-line);vertical-align:top}
td.n+td:not(.n),th.n+th:not(.n){padding-left:10px}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td code,td.name{overflow-wrap:anywhere}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace}
pre{background:var(--w-panel);border:1px solid var(--w-line);border-radius:8px;padding:12px 14px;overflow:auto;
max-height:560px;margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
pre .k{color:var(--w-c0)}pre .s{color:var(--w-c2)}pre .v{color:var(--w-c1)}
.share{display:inline-block;min-width:52px}
.track{display:inline-block;width:64px;text-align:left}
.bar{display:inline-block;height:8px;border-radius:2px;background:var(--w-c0)}
@media print{.tall,pre{max-height:none}}
"""


def page(run: Run) -> str:
    """The whole page."""
    sections = [
        ("curves", "Curves", _curves(run)),
        ("layers", "Layers", _layers(run)),
        ("network", "Network", _network(run)),
        ("kernels", "Kernel time", _kernels(run)),
        ("memory", "Memory", _memory(run)),
        ("config", "Configuration", _config(run)),
        ("environment", "Environment", _environment(run)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in sections if body]
    name = run.path.resolve().name
    links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title, _ in shown)
    bodies = "".join(
        f'<section id="{anchor}"><h2>{escape(title)}</h2>{_unique(body, anchor)}</section>'
        for anchor, title, body in shown
    )
    broken = "".join(f'<p class="soft">{escape(one)} could not be read.</p>' for one in run.unreadable)
    broken += "".join(f'<p class="soft">Could not be measured: {escape(str(one))}</p>' for one in run.missing)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(name)} - Weft run</title><style>{variables()}{STYLE}</style></head><body><main>"
        f'<header><h1>{escape(name)}</h1><p class="soft">{escape(_subtitle(run))}</p><nav>{links}</nav>{_tiles(run)}'
        f"</header>{broken}{bodies}</main></body></html>\n"
    )


def _unique(body: str, anchor: str) -> str:
    """Identifiers inside pictures, which are those of the whole page, made different from each other."""
    return body.replace("weft-arrow", f"weft-arrow-{anchor}")


def _subtitle(run: Run) -> str:
    about = run.environment or {}
    words = [
        f"on {about['device']}" if about.get("device") else "",
        f"started {str(about['started']).replace('T', ' ')}" if about.get("started") else "",
        f"Weft {about['weft']}" if about.get("weft") else "",
    ]
    return " · ".join(word for word in words if word) or "a run of Weft"


def _tiles(run: Run) -> str:
    found: list[tuple[str, str]] = []
    epochs = len(run.metrics.rows)
    if epochs:
        found.append((f"{epochs:,}", "epoch" if epochs == 1 else "epochs"))
    steps = max(run.steps.last("step") or 0, run.metrics.last("step") or 0)
    if steps:
        found.append((f"{steps:,.0f}", "steps"))
    by_epoch = epoch_series(run)
    for name, points in by_epoch.items():
        if name in ("loss", "val_loss") or name.removeprefix("val_") in ("accuracy", "f1", "auc", "perplexity"):
            found.append((f"{points[-1][1]:.4g}", f"last {name.replace('_', ' ')}"))
    rate = run.metrics.last("lr")
    if rate is not None:
        found.append((f"{rate:.4g}", "last learning rate"))
    losses = by_epoch.get("val_loss", [])
    finite = [(loss, epoch) for epoch, loss in losses if math.isfinite(loss)]
    if finite:
        loss, epoch = min(finite)
        found.append((f"{loss:.4g}", f"best val loss, epoch {epoch:g}"))
    seconds = run.steps.last("seconds") or sum(y for _, y in run.metrics.series("epoch").get("seconds", []))
    if seconds:
        found.append((_duration(seconds), "time"))
    if run.layers:
        count = sum(_size(row.get("parameters")) for row in run.layers if isinstance(row, dict))
        found.append((f"{count:,}", "parameters"))
    if run.kernels and number(run.kernels.get("seconds")):
        found.append((seconds_text(float(run.kernels["seconds"])), "a training step"))
    if run.memory and number(run.memory.get("peak")):
        found.append((size_text(_size(run.memory["peak"])), "peak memory"))
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in found
    )
    return f'<div class="tiles">{tiles}</div>' if tiles else ""


def _duration(seconds: float) -> str:
    if seconds < 60:
        return seconds_text(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


# --- sections --------------------------------------------------------------------------------------------------------


def epoch_series(run: Run) -> Series:
    """What was measured in each epoch. The file counts epochs from 0, what people read from 1."""
    found = run.metrics.series("epoch", COUNTS)
    return {name: [(epoch + 1, y) for epoch, y in points] for name, points in found.items()}


def group_series(series: Series) -> dict[str, Series]:
    """Series by the quantity that they are of: training and validation together."""
    found: dict[str, Series] = {}
    for name, points in series.items():
        found.setdefault(name.removeprefix("val_"), {})[name] = points
    return found


def is_logarithmic(name: str, group: Series) -> bool:
    """Whether a loss or a learning rate falls so far that only a logarithmic axis shows it."""
    values = [y for points in group.values() for _, y in points if math.isfinite(y)]
    wide = bool(values) and min(values) > 0 and max(values) / min(values) >= LOG_FROM
    return wide and ("loss" in name or name == "lr")


def charts(run: Run) -> list[str]:
    """All curves of a run as SVG: by epoch, then by step."""
    out = []
    for along, series in (
        ("epoch", epoch_series(run)),
        ("step", run.steps.series("step", COUNTS)),
    ):
        for name, group in group_series(series).items():
            if along == "step" and all(len(points) < 2 for points in group.values()):
                continue  # a run of few steps
            if name in WORDS and len({y for points in group.values() for _, y in points}) == 1:
                continue  # a constant is a number, not a curve
            words = WORDS.get(name, name.replace("_", " "))
            title = f"{words} by {along}"
            out.append(line_chart(group, title[0].upper() + title[1:], along, words, is_logarithmic(name, group)))
    return out


def _curves(run: Run) -> str:
    drawn = [f'<div class="figure">{chart}</div>' for chart in charts(run)]
    return f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""


def _layers(run: Run) -> str:
    if not run.layers:
        return ""
    rows = []
    for row in run.layers:
        if not isinstance(row, dict):
            continue
        path, kind = str(row.get("path", "")), str(row.get("kind", ""))
        depth = path.count(".") + 1 if path else 0
        name = path.rpartition(".")[2]
        label = f"{name}: {kind}" if name else kind
        shapes = " ".join(str(shape) for shape in _list(row.get("shapes")))
        count = _size(row.get("parameters"))
        frozen = count - _size(row.get("trainable"))
        nbytes = _size(row.get("bytes"))
        notes = f" ({frozen:,} frozen)" if frozen > 0 else ""
        cells = [
            (f'<span style="padding-left:{18 * depth}px">{escape(label)}</span>', "name"),
            (escape(shapes), ""),
            (f"{count:,}{notes}" if count else "", "n"),
            (size_text(nbytes) if nbytes else "", "n"),
        ]
        rows.append(cells)
    total = sum(_size(row.get("parameters")) for row in run.layers if isinstance(row, dict))
    table = _table(("layer", "output shape", "parameters", "memory"), rows, numbers=(2, 3))
    return f"{table}<p class='soft'>{total:,} parameters in all</p>"


def _network(run: Run) -> str:
    if not run.network:
        return ""
    inline = re.sub(r"<style>.*?</style>", "", run.network, flags=re.DOTALL)  # the page has the same colours
    return f'<div class="figure tall">{inline}</div>'


def _kernels(run: Run) -> str:
    if not run.kernels:
        return ""
    layers, kernels = _dicts(run.kernels.get("layers")), _dicts(run.kernels.get("kernels"))
    out = [f"<p>{escape(_about_kernels(run.kernels, len(kernels)))}</p>"]
    phases = ("forward", "backward", "update")
    timed = [(_layer_name(row), [number(row.get(phase)) or 0.0 for phase in phases]) for row in layers]
    timed = [(name, times) for name, times in timed if sum(times) > 0]
    factor, unit = (1e3, " ms") if max([sum(times) for _, times in timed], default=0.0) >= 1e-3 else (1e6, " us")
    if timed:
        used = [k for k in range(3) if any(times[k] for _, times in timed)]
        ranked = sorted(timed, key=lambda row: -sum(row[1]))[:24]
        bars = [(name, [factor * times[k] for k in used]) for name, times in ranked]
        chart = bar_chart(bars, [phases[k] for k in used], "Time by layer", unit)
        out.append(f'<div class="figure">{chart}</div><p></p>')
    total = sum(number(row.get("seconds")) or 0.0 for row in kernels) or 1.0
    rows = []
    ranked_kernels = sorted(kernels, key=lambda row: -(number(row.get("seconds")) or 0.0))
    longest = max([number(row.get("seconds")) or 0.0 for row in kernels], default=0.0) or 1.0
    for row in ranked_kernels[:MAX_KERNELS]:
        seconds = number(row.get("seconds")) or 0.0
        parts = sorted(_dicts(row.get("layers")), key=lambda part: -(number(part.get("share")) or 0.0))
        names = ", ".join(dict.fromkeys(str(part.get("layer", "")) for part in parts))
        bar = f'<span class="track"><span class="bar" style="width:{64 * seconds / longest:.1f}px"></span></span>'
        rows.append([
            (f"<code>{escape(str(row.get('name', '')))}</code>", "name"),
            (f"{_size(row.get('times')) or 1:,}", "n"),
            (seconds_text(seconds), "n"),
            (f'{bar}<span class="share">{percent(seconds / total)}</span>', "n"),
            (size_text(_size(row.get("bytes"))), "n"),
            (count_text(number(row.get("flops")) or 0.0), "n"),
            (share_text(number(row.get("copy_share")) or 0.0), "n"),
            (share_text(number(row.get("multiply_share")) or 0.0), "n"),
            (escape(names), "name"),
        ])  # fmt: skip
    titles = ("kernel", "runs", "time", "share", "moved", "flop", "of copy rate", "of multiply rate", "layers")
    out.append(_table(titles, rows, numbers=range(1, 8)))
    if len(kernels) > MAX_KERNELS:
        rest = sum(number(row.get("seconds")) or 0.0 for row in ranked_kernels[MAX_KERNELS:])
        out.append(f'<p class="soft">{len(kernels) - MAX_KERNELS} more take {seconds_text(rest)}</p>')
    return "".join(out)


def _layer_name(row: Mapping[str, Any]) -> str:
    """A layer with its kind, where that says more."""
    name, kind = str(row.get("layer", "")), str(row.get("kind", ""))
    return f"{name}: {kind}" if kind and kind not in name else name


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [one for one in _list(values) if isinstance(one, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _about_kernels(found: Mapping[str, Any], count: int) -> str:
    whole, parts = number(found.get("seconds")) or 0.0, number(found.get("kernel_seconds")) or 0.0
    copies, multiplies = number(found.get("copy_rate")) or 0.0, number(found.get("multiply_rate")) or 0.0
    about = f" ({found['description']})" if found.get("description") else ""
    return (
        f"A training step on {found.get('device', '?')}{about} takes {seconds_text(whole)}; its {count} kernels, each "
        f"timed alone, take {seconds_text(parts)}. The device copies {rate_text(copies, 'B')} and multiplies "
        f"{rate_text(multiplies, 'flop')}. A kernel that computes for several layers counts for each of them by its "
        "share of the elements computed."
    )


def _memory(run: Run) -> str:
    if not run.memory:
        return ""
    found = run.memory
    sizes = {key: _size(found.get(key)) for key in ("peak", "inputs", "outputs", "arena_bytes", "temporaries")}
    words = (
        f"Peak {size_text(sizes['peak'])}: inputs, parameters and state {size_text(sizes['inputs'])}, results "
        f"{size_text(sizes['outputs'])}, temporaries {size_text(sizes['arena_bytes'])} (which would take "
        f"{size_text(sizes['temporaries'])} if none shared memory). Known before the first step runs."
    )
    out = [f"<p>{escape(words)}</p>"]
    arena = [one for one in _list(found.get("arena")) if _is_interval(one)]
    if arena:
        intervals = [(str(label), _size(a), _size(b), _size(c), _size(d)) for label, a, b, c, d in arena]
        steps = min(max(_size(found.get("steps")), 1), max(one[4] for one in intervals) + 1)
        drawn = memory_map(intervals, sizes["arena_bytes"], steps, "Memory that temporaries share")
        out.append(f'<div class="figure">{drawn}</div><p></p>')
    rows = []
    for one in _list(found.get("largest")):
        if isinstance(one, list) and len(one) == 5 and all(number(value) is not None for value in one[2:]):
            name, kind, nbytes, first, last = one
            steps_used = f"{_size(first)} to {_size(last)}" if kind == "arena" else "all"
            rows.append([
                (f"<code>{escape(str(name))}</code>", "name"), (escape(str(kind)), ""), (escape(steps_used), "n"),
                (size_text(_size(nbytes)), "n"),
            ])  # fmt: skip
    if rows:
        out.append(_table(("largest tensors", "kind", "steps", "size"), rows, numbers=(2, 3)))
    return "".join(out)


def _size(value: Any) -> int:
    """A number of bytes or steps in a file, which may have any number: at least 0, and not more than there can be."""
    found = number(value)
    return 0 if found is None or math.isnan(found) else int(min(max(found, 0.0), float(MAX_SIZE)))


def _is_interval(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 5 and all(isinstance(value, int) for value in one[1:])


def _config(run: Run) -> str:
    if run.config is None:
        return ""
    text = json.dumps(run.config, indent=2, ensure_ascii=False)
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\n", r"\1\n    ", text)  # line breaks of texts, and no backslash before an n
    return f"<pre>{_colour_json(text)}</pre>"


def _colour_json(text: str) -> str:
    """JSON with its keys, strings and other values in colours."""
    pattern = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*|true|false|null)')
    out, at = [], 0
    for match in pattern.finditer(text):
        out.append(escape(text[at : match.start()]))
        if match[1] is not None:
            kind = "k" if match[2] else "s"
            out.append(f'<span class="{kind}">{escape(match[1])}</span>{escape(match[2] or "")}')
        else:
            out.append(f'<span class="v">{escape(match[3])}</span>')
        at = match.end()
    return "".join([*out, escape(text[at:])])


def _environment(run: Run) -> str:
    if not run.environment:
        return ""
    rows = []
    for key, value in run.environment.items():
        plain = " ".join(map(str, value)) if isinstance(value, list) else value
        text = (
            plain if isinstance(plain, str) else number_text(plain) if isinstance(plain, float) else json.dumps(plain)
        )
        rows.append([(escape(str(key)), ""), (f"<code>{escape(text)}</code>", "name")])
    return _table(("", ""), rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[tuple[str, str]]], numbers: Iterable[int] = ()) -> str:
    """A table; cells are (HTML, class)."""
    right = set(numbers)
    head = "".join(
        f'<th class="n">{t}</th>' if k in right else f"<th>{t}</th>" for k, t in enumerate(map(escape, titles))
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(titles) else ""
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' if kind else f"<td>{cell}</td>" for cell, kind in row)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'
