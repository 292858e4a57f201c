"""Pictures of fitted models, as Matplotlib figures: coefficients by lag, convergence, fan charts.

The figures are made without pyplot: nothing global changes, and nothing is shown until the caller does so
(``figure.savefig(path)``, or as the last value of a notebook cell).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np

from fedvar_fast._tables import listed
from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.exceptions import DataError, OptionError
from fedvar_fast.panel import ClientSeries, as_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["coefficients", "convergence", "forecast"]

#: Diverging, white in the middle, and told apart by colour-blind readers.
_COLOURS = "RdBu_r"
_LINE, _ACCENT = "#1f4e79", "#c0504d"
#: Not more than so many series are drawn of their own accord.
_MOST_CLIENTS, _MOST_VARIABLES = 6, 4
#: Names are left out, at regular distances, where they would be smaller than this many points.
_SMALLEST_FONT = 5.0


# -- coefficients --------------------------------------------------------------------------------------------


def coefficients(model: PanelVAR, clients: Sequence[str] | None = None, *, shared: bool = True) -> Figure:
    """Heatmaps of the coefficients, columns grouped by lag (as the paper's Figures 6 and 7).

    The shared ``A_0`` and each client's ``Delta_k``; of a model with a low-rank and a sparse part per client both of
    these; of any other model ``A_k``. All on one symmetric scale. Coefficients are those of the scaled data.

    Parameters
    ----------
    model : fitted estimator
    clients : sequence of str, optional
        Whose parts; the first six by default.
    shared : bool
        Also the shared part, where the model has one.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    DataError
        An unknown client.
    OptionError
        No client and no shared part to draw, or Matplotlib is not installed.
    """
    figure_class = _figure_class()
    panels = _coefficient_panels(model, _chosen("client", clients, model.clients_, _MOST_CLIENTS), shared)
    if not panels:
        raise OptionError("clients is empty and there is no shared part: there is nothing to draw")
    dim, width = next(iter(panels.values())).shape
    # Side by side while the panels are narrow, one below the other when many lags make them wide.
    n_columns = 2 if any("low-rank" in title for title in panels) else max(1, min(len(panels), 3 * dim // width))
    n_rows = math.ceil(len(panels) / n_columns)
    size = _panel_size(dim, width, n_columns)
    figure = figure_class(figsize=(n_columns * size[0] + 0.9, n_rows * size[1]), layout="constrained")
    limit = max(float(np.abs(matrix).max()) for matrix in panels.values()) or 1.0
    axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for ax, (title, matrix) in zip(axes, panels.items(), strict=False):
        image = ax.imshow(matrix, cmap=_COLOURS, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        _label_heatmap(ax, title, model.columns_, width // dim, size)
    _hide_inner_names(axes, len(panels), n_columns)
    figure.colorbar(image, ax=list(axes), shrink=min(1.0, 3.0 / (n_rows * size[1])), aspect=25, pad=0.01)
    return figure


def _coefficient_panels(model: Any, clients: Sequence[str], shared: bool) -> dict[str, FloatArray]:
    """Titles and matrices (d, pd)."""
    model._check_fitted()
    if hasattr(model, "A0_"):
        panels = {"$A_0$, shared": model.A0_} if shared else {}
        return panels | {rf"$\Delta$, {_plain_text(name)}": model.deltas_[name] for name in clients}
    if hasattr(model, "low_rank_") and hasattr(model, "sparse_"):
        return {
            f"{_plain_text(name)}, {what}": part[name]
            for name in clients
            for what, part in (("low-rank", model.low_rank_), ("sparse", model.sparse_))
        }
    return {_plain_text(name): model.coef_[name] for name in clients}


def _panel_size(dim: int, width: int, n_columns: int) -> tuple[float, float]:
    """Inches of one heatmap with its names: cells of at least 0.08, and a page that stays a page."""
    cell = min(0.22, max(0.08, 9.0 / (width * n_columns)))
    most_wide, most_high = 14.0 / n_columns, 6.5
    return min(most_wide, max(3.4, cell * width + 1.2)), min(most_high, max(2.2, cell * dim + 1.0))


def _label_heatmap(ax: Axes, title: str, names: Sequence[str], order: int, size: tuple[float, float]) -> None:
    dim = len(names)
    ax.set_title(title, fontsize=10)
    _name_ticks(ax.yaxis, range(dim), names, 72.0 * (size[1] - 1.0) / dim)
    # Below, each variable under its column; above, the lags.
    _name_ticks(ax.xaxis, range(dim * order), list(names) * order, 72.0 * (size[0] - 1.2) / (dim * order))
    ax.tick_params(axis="x", rotation=90)
    ax.tick_params(length=0, pad=1)
    for lag in range(1, order):
        ax.axvline(lag * dim - 0.5, color="black", linewidth=0.8)
    if order > 1:
        top = ax.secondary_xaxis("top")
        top.set_xticks([lag * dim + (dim - 1) / 2 for lag in range(order)], [f"lag {lag + 1}" for lag in range(order)])
        top.tick_params(length=0, pad=1, labelsize=8)
        top.spines["top"].set_visible(False)


def _hide_inner_names(axes: Any, n_panels: int, n_columns: int) -> None:
    """Names only at the left of a row and below a column; places without a panel stay empty."""
    for place, ax in enumerate(axes):
        ax.set_visible(place < n_panels)
        ax.tick_params(labelleft=place % n_columns == 0, labelbottom=place + n_columns >= n_panels)


def _name_ticks(axis: Any, places: Sequence[int], names: Sequence[str], points: float) -> None:
    """Names at the ticks, `points` apart: all of them where they can be read, else every so-many-th."""
    every = max(1, math.ceil(_SMALLEST_FONT / points))
    shown = [_plain_text(_shortened(name)) for name in names]
    axis.set_ticks(list(places)[::every], shown[::every], fontsize=min(8.0, max(_SMALLEST_FONT, 0.85 * points * every)))


def _shortened(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _plain_text(name: str) -> str:
    """A name in which Matplotlib finds no formula."""
    return name.replace("$", r"\$")


# -- convergence ---------------------------------------------------------------------------------------------


def convergence(model: PanelVAR) -> Figure:
    """Loss and step change of every round of Stage I, on logarithmic axes; under privacy the change alone.

    Parameters
    ----------
    model : fitted estimator with rounds
        Its ``history_`` has ``change`` and, without privacy, ``loss``.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    OptionError
        A model without rounds, or Matplotlib is not installed.
    """
    figure_class = _figure_class()
    model._check_fitted()
    history = getattr(model, "history_", {})
    series = [
        (label, np.asarray(history[key], dtype=np.float64), first)
        for key, label, first in (("loss", "pooled loss", 0), ("change", "change of the iterate", 1))
        if len(history.get(key, ())) > 0
    ]
    if not series:
        raise OptionError(f"this {type(model).__name__} has no rounds to draw: it was not fitted round by round")
    figure = figure_class(figsize=(4.2 * len(series) + 0.4, 3.2), layout="constrained")
    for ax, (label, values, first) in zip(figure.subplots(1, len(series), squeeze=False)[0], series, strict=True):
        shown = np.where(values > 0.0, values, np.nan)  # a logarithm has no place for an exact zero
        ax.plot(np.arange(first, first + len(values)), shown, color=_LINE, marker=".", markersize=4, linewidth=1.2)
        _logarithmic(ax, shown)
        ax.set_xlabel("round")
        ax.set_title(label, fontsize=10)
        ax.grid(True, which="major", color="0.9")
        _clear_frame(ax)
    return figure


def _logarithmic(ax: Axes, values: FloatArray) -> None:
    """A logarithmic axis; within one decade with plain numbers, where powers of ten would have no place."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    if not np.isfinite(values).any():
        return
    ax.set_yscale("log")
    if np.nanmax(values) < 10.0 * np.nanmin(values):
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_formatter("{x:.4g}")
        ax.yaxis.set_minor_locator(NullLocator())


# -- forecasts -----------------------------------------------------------------------------------------------


def forecast(
    model: PanelVAR,
    steps: int,
    *,
    clients: Sequence[str] | None = None,
    variables: Sequence[str] | None = None,
    level: float | Sequence[float] | None = None,
    history: Any = None,
) -> Figure:
    """Fan chart: forecasts from the end of each series, with bands, in original units.

    Parameters
    ----------
    model : fitted estimator
    steps : int
    clients, variables : sequence of str, optional
        A row of charts per variable, a column per client; by default the first six clients and four variables.
    level : float or sequence of float, optional
        Percent of the bands, as in `PanelVAR.forecast`.
    history : Panel, or anything `fedvar_fast.as_panel` takes, optional
        The series that the model was fitted on, whose last rows are drawn before the forecasts.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    OptionError
        ``steps`` below 1, a level outside (0, 100), or Matplotlib is not installed.
    DataError
        An unknown client or variable, or a history that lacks one.
    """
    figure_class = _figure_class()
    model._check_fitted()
    rows = _chosen("variable", variables, model.columns_, _MOST_VARIABLES)
    columns = _chosen("client", clients, model.clients_, _MOST_CLIENTS)
    if not rows or not columns:
        raise OptionError("clients and variables must name at least one each: there is nothing to draw")
    fans = _fans(model, steps, level)
    past = None if history is None else as_panel(history).reorder(columns=rows, clients=columns)
    size = (min(16.0, 3.4 * len(columns) + 0.6), min(14.0, 1.9 * len(rows) + 0.9))
    figure = figure_class(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharex="col")
    for j, client in enumerate(columns):
        before = None if past is None else _last_rows(past[client], fans[client], steps)
        for i, variable in enumerate(rows):
            fan = fans[client].of_variable(model.columns_.index(variable))
            _draw_fan(axes[i, j], fan, None if before is None else before.values[:, i])
            if j == 0:
                axes[i, j].set_ylabel(_plain_text(_shortened(variable, 22)), fontsize=9)
        axes[0, j].set_title(_plain_text(client), fontsize=10)
        _time_ticks(axes[-1, j], [] if before is None else before.labels, fans[client].labels)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    return figure


@dataclass(frozen=True)
class _Fan:
    """Forecasts of one client: times as text, means (steps, d), and by level the lower and upper ends (steps, d)."""

    labels: list[str]
    mean: FloatArray
    bands: dict[float, tuple[FloatArray, FloatArray]]

    def of_variable(self, at: int) -> _Fan:
        """The same of one variable, (steps,)."""
        bands = {level: (lower[:, at], upper[:, at]) for level, (lower, upper) in self.bands.items()}
        return _Fan(self.labels, self.mean[:, at], bands)


def _fans(model: PanelVAR, steps: int, level: float | Sequence[float] | None) -> dict[str, _Fan]:
    """What `PanelVAR.forecast` gives, by client."""
    frame = nw.from_native(model.forecast(steps, level), eager_only=True)
    dim = len(model.columns_)
    if level is None:
        means = frame.select(*model.columns_).to_numpy().reshape(len(model.clients_), steps, dim, 1)
        levels, ends = np.zeros(0), []
    else:
        levels = np.unique(np.asarray(level, dtype=np.float64))
        order = np.argsort(np.atleast_1d(np.asarray(level, dtype=np.float64)))
        shape = (len(model.clients_), steps, dim, len(order))
        means, *ends = (frame[name].to_numpy().reshape(shape)[..., order] for name in ("mean", "lower", "upper"))
    times = [str(time).removesuffix(" 00:00:00") for time in frame[model.time_label_].to_list()]
    labels = np.asarray(times, dtype=object).reshape(len(model.clients_), steps, -1)[:, :, 0]
    return {
        client: _Fan(
            list(labels[k]),
            means[k, :, :, 0],
            {float(one): (ends[0][k, :, :, m], ends[1][k, :, :, m]) for m, one in enumerate(levels)},
        )
        for k, client in enumerate(model.clients_)
    }


@dataclass(frozen=True)
class _Past:
    """The last rows of one client before its forecasts."""

    labels: list[str]
    values: FloatArray


def _last_rows(series: ClientSeries, fan: _Fan, steps: int) -> _Past:
    """So much of the past that the forecasts are still seen; it must end where they begin."""
    following = series.time.extend(1).label(0)
    if following != fan.labels[0]:
        raise DataError(
            f"client {series.name!r}: history ends before {following}, but the forecasts begin at {fan.labels[0]}: "
            "give the rows that the model was fitted on"
        )
    recent = series[max(0, len(series) - max(4 * steps, 24)) :]
    return _Past([recent.time.label(row) for row in range(len(recent))], recent.values)


def _draw_fan(ax: Axes, fan: _Fan, before: FloatArray | None) -> None:
    """One chart; the last observed row is at 0."""
    ahead = np.arange(1, len(fan.mean) + 1)
    if before is not None:
        ax.plot(np.arange(1 - len(before), 1), before, color=_LINE, linewidth=1.2, label="observed")
        ax.plot([0, 1], [before[-1], fan.mean[0]], color=_ACCENT, linewidth=0.8, linestyle=":")
    for number, (level, (lower, upper)) in enumerate(sorted(fan.bands.items(), reverse=True)):
        # A band of one step has no area: it is drawn as wide as half a step to either side.
        sides = (ahead, lower, upper) if len(ahead) > 1 else ([0.5, 1.5], lower.repeat(2), upper.repeat(2))
        ax.fill_between(*sides, color=_ACCENT, alpha=0.18 + 0.12 * number, linewidth=0, label=f"{level:g} %")
    ax.plot(ahead, fan.mean, color=_ACCENT, linewidth=1.6, marker="." if len(ahead) < 13 else "", label="forecast")
    ax.axvline(0.5, color="0.6", linewidth=0.8, linestyle="--")
    ax.tick_params(labelsize=8)
    ax.grid(True, axis="y", color="0.92")
    _clear_frame(ax)


def _time_ticks(ax: Axes, past: Sequence[str], ahead: Sequence[str]) -> None:
    """A few times below the axis, in the user's own form."""
    labels = [*past, *ahead]
    every = max(1, math.ceil(len(labels) / 5))
    places = np.arange(len(labels))[(len(labels) - 1) % every :: every]
    ax.set_xticks(places + 1 - len(past), [_plain_text(labels[place]) for place in places])
    ax.tick_params(axis="x", rotation=30)
    for label in ax.get_xticklabels():
        label.set_horizontalalignment("right")


# -- what all share ------------------------------------------------------------------------------------------


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("pictures need Matplotlib: pip install 'fedvar_fast[plot]'") from error
    return Figure


def _chosen(what: str, asked: Sequence[str] | None, known: Sequence[str], most: int) -> list[str]:
    """The names asked for, or the first few."""
    if asked is None:
        return list(known)[:most]
    names = [asked] if isinstance(asked, str) else list(asked)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DataError(f"no {what} {listed(unknown)}; the {what}s are {listed(known)}")
    return names


def _clear_frame(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
