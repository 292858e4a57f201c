"""Pictures without pyplot: lines with bands, and heatmaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

#: Told apart by colour-blind readers (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP"
#: Up to so many points each has its tick.
_MOST_TICKS = 8


@dataclass(frozen=True)
class Line:
    """A curve of means; ``low`` and ``high`` are the ends of its band."""

    label: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False
    colour: int | None = None


@dataclass(frozen=True)
class Chart:
    title: str
    lines: Sequence[Line]
    y_label: str = ""


def draw_lines(path: Path, x_label: str, charts: Sequence[Chart], marks: bool = True, log: bool = False) -> None:
    """Charts side by side, on logarithmic axes if asked."""
    figure = Figure(figsize=(4.3 * len(charts) + 0.4, 3.6), layout="constrained")
    for ax, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
        for number, line in enumerate(chart.lines):
            place = number if line.colour is None else line.colour
            colour = COLOURS[place % len(COLOURS)]
            ax.plot(
                line.x, line.mean, color=colour, label=line.label, linewidth=1.6, markersize=4,
                marker=_MARKERS[place % len(_MARKERS)] if marks and not line.dashed else "",
                linestyle="--" if line.dashed else "-",
            )  # fmt: skip
            if line.low is not None and line.high is not None:
                ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        if log:
            ax.set(xscale="log", yscale="log")
        elif len(chart.lines[0].x) <= _MOST_TICKS:
            ax.set_xticks(list(chart.lines[0].x))
        ax.set(xlabel=x_label, ylabel=chart.y_label)
        ax.set_title(chart.title, fontsize=10)
        ax.grid(True, color="0.92")
        ax.legend(fontsize=8, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


@dataclass(frozen=True)
class Axis:
    label: str
    values: Sequence[float]


def draw_heatmaps(
    path: Path, across: Axis, down: Axis, rows: Sequence[Mapping[str, np.ndarray]], maps: Sequence[str]
) -> None:
    """Rows of heatmaps with their figures in the cells; a row has the colours of `maps` and one scale.

    That of a diverging colour map is symmetric around zero.
    """
    n_columns = max(len(row) for row in rows)
    figure = Figure(figsize=(4.0 * n_columns, 3.3 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), n_columns, squeeze=False)
    for line, row, colours in zip(axes, rows, maps, strict=True):
        low, high = (float(end([end(values) for values in row.values()])) for end in (np.min, np.max))
        if colours.startswith("RdBu"):
            low, high = -max(-low, high), max(-low, high)
        for ax, (title, values) in zip(line, row.items(), strict=True):
            image = ax.imshow(values, cmap=colours, aspect="auto", vmin=low, vmax=high)
            _write_figures(ax, image, values)
            ax.set_xticks(range(len(across.values)), [f"{value:g}" for value in across.values])
            ax.set_yticks(range(len(down.values)), [f"{value:g}" for value in down.values])
            ax.set(xlabel=across.label, ylabel=down.label)
            ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _write_figures(ax: object, image: object, values: np.ndarray) -> None:
    """Dark letters on light cells and the other way round."""
    for i, j in np.ndindex(values.shape):
        red, green, blue, _ = image.cmap(image.norm(values[i, j]))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
        # A rounded zero has no sign.
        text = f"{round(float(values[i, j]), 2) + 0.0:.2f}"
        ax.text(j, i, text, ha="center", va="center", fontsize=8, color="black" if light else "white")
