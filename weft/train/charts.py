"""The curves of a history as one SVG picture: a panel for each quantity, training and validation together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Series = Mapping[str, Sequence[tuple[float, float]]]


def group_by_quantity(series: Series) -> dict[str, dict[str, Sequence[tuple[float, float]]]]:
    """Series by the quantity that they are of.

    >>> list(group_by_quantity({"loss": [(0, 1.0)], "val_loss": [(0, 2.0)], "lr": [(0, 0.1)]})["loss"])
    ['loss', 'val_loss']
    """
    found: dict[str, dict[str, Sequence[tuple[float, float]]]] = {}
    for name, points in series.items():
        found.setdefault(name.removeprefix("val_"), {})[name] = points
    return found


def panels(series: Series) -> str:
    """All panels below each other."""
    from weft.drawing.charts import line_chart

    groups = group_by_quantity(series)
    drawn = [line_chart(group, title=name, x_label="epoch", y_label=name) for name, group in groups.items()]
    sizes = [_size(picture) for picture in drawn]
    width, height = max((w for w, _ in sizes), default=1.0), sum(h for _, h in sizes)
    parts, top = [], 0.0
    for picture, (_, tall) in zip(drawn, sizes, strict=True):
        body = picture[picture.index("<svg") :]
        parts.append(f'<g transform="translate(0 {top:g})">{body}</g>')
        top += tall
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>\n'


def _size(picture: str) -> tuple[float, float]:
    """Width and height of an SVG picture."""
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', picture)
    assert found is not None
    return float(found[1]), float(found[2])
