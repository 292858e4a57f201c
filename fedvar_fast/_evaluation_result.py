"""What a rolling evaluation found: errors, their standard errors, paired comparisons, tables."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedvar_fast._tables import free_name, listed
from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import DataError, OptionError
from fedvar_fast.metrics import diebold_mariano, mean_standard_error, rmsfe_standard_error, squared_errors

__all__ = ["FLOORS", "EvaluationResult", "Settings"]

#: Forecasts that every evaluation adds: whoever does not beat them has learned nothing.
FLOORS = ("mean", "zero")
_FORMATS = ("text", "markdown", "csv", "json")


@dataclass(frozen=True)
class Settings:
    """How an evaluation was made; see `fedvar_fast.evaluation.rolling_evaluation`."""

    n_origins: int
    horizon: int
    window: str
    window_length: int | None
    retune_every: int | None
    units: str
    baseline: str | None


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Forecasts of several methods for the last rows of every client, and what they are worth.

    Attributes
    ----------
    clients, columns : tuple of str
    forecasts : dict of method to dict of client to ndarray, shape (n_origins, d)
        In original units; the methods in the order given, then ``"mean"`` and ``"zero"``.
    actuals : dict of client to ndarray, shape (n_origins, d)
    times : dict of client to list
        Of the rows that were forecast.
    scales : dict of client to ndarray, shape (n_origins, d)
        Standard deviations in the training windows.
    tuned : dict of method to dict of origin to dict
        Options that the data chose, by the origin at which they did.
    settings : Settings
    """

    clients: tuple[str, ...]
    columns: tuple[str, ...]
    forecasts: dict[str, dict[str, FloatArray]]
    actuals: dict[str, FloatArray]
    times: dict[str, list[Any]]
    scales: dict[str, FloatArray]
    tuned: dict[str, dict[int, dict[str, Any]]]
    settings: Settings

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self.forecasts)

    def squared_errors(self, method: str, client: str) -> FloatArray:
        """Squared errors (n_origins, d) in the units asked for: ``e^2``, or ``(e / s)^2`` when scaled."""
        self._check_method("method", method)
        if client not in self.actuals:
            raise DataError(f"no client {client!r}; the clients are {listed(self.clients)}")
        errors = squared_errors(self.forecasts[method][client], self.actuals[client])
        return errors if self.settings.units == "original" else errors / self.scales[client] ** 2

    def _losses(self, method: str) -> FloatArray:
        """Mean squared error at each origin, (n_clients, n_origins)."""
        return np.stack([self.squared_errors(method, client).mean(axis=1) for client in self.clients])

    @property
    def mean_label(self) -> str:
        """The name of the last row of `rmsfe`: "mean", unless a client is called that."""
        return free_name("mean", self.clients)

    @property
    def rmsfe(self) -> pd.DataFrame:
        """RMSFE by client and method, pooled over variables and origins; the last row is the mean over clients."""
        frame = pd.DataFrame(
            {method: np.sqrt(self._losses(method).mean(axis=1)) for method in self.methods},
            index=pd.Index(self.clients, name="client"),
        )
        return pd.concat([frame, frame.mean().to_frame(self.mean_label).T.rename_axis("client")])

    def rmsfe_by_variable(self, client: str | None = None) -> pd.DataFrame:
        """RMSFE by variable and method, of one client, or the mean over clients of theirs."""
        clients = self.clients if client is None else (client,)

        def of_method(method: str) -> FloatArray:
            roots = [np.sqrt(self.squared_errors(method, one).mean(axis=0)) for one in clients]
            return np.asarray(np.mean(roots, axis=0))

        figures = {method: of_method(method) for method in self.methods}
        return pd.DataFrame(figures, index=pd.Index(self.columns, name="variable"))

    @property
    def standard_errors(self) -> pd.DataFrame:
        """Standard errors of `rmsfe` over the origins, in the same shape.

        With ``m_i`` the mean squared error at origin ``i`` they are ``se(mean(m)) / (2 RMSFE)`` (delta method); that
        of the mean over clients is ``se(mean(z))``, ``z_i = mean_k m_{ki} / (2 RMSFE_k)``, so that errors which
        clients have in common count. See `fedvar_fast.metrics.mean_standard_error` for horizons above 1.
        """
        horizon = self.settings.horizon

        def of_method(method: str) -> list[float]:
            losses = self._losses(method)
            own = [rmsfe_standard_error(row, horizon) for row in losses]
            roots = np.sqrt(losses.mean(axis=1, keepdims=True))
            linear = losses / np.where(roots > 0.0, 2.0 * roots, 1.0)
            return [*own, mean_standard_error(linear.mean(axis=0), horizon)]

        index = pd.Index([*self.clients, self.mean_label], name="client")
        return pd.DataFrame({method: of_method(method) for method in self.methods}, index=index)

    def compare(self, baseline: str | None = None) -> pd.DataFrame:
        """Every method against one of them, paired by origin: Diebold and Mariano's test on squared errors.

        Parameters
        ----------
        baseline : str, optional
            That of the evaluation by default.

        Returns
        -------
        pandas.DataFrame
            Columns client, method, baseline, difference (mean loss of the method less that of the baseline: below 0
            the method is better), standard_error, statistic, p_value, n_forecasts; see
            `fedvar_fast.metrics.diebold_mariano`. The loss of an origin is the mean over variables, in the rows of
            the client "pooled" also over clients.

        Raises
        ------
        OptionError
            No baseline, or one that is no method.
        """
        base = self.settings.baseline if baseline is None else baseline
        if base is None:
            raise OptionError(f"baseline is missing: name one of the methods {', '.join(self.methods)}")
        self._check_method("baseline", base)
        losses = {method: self._losses(method) for method in self.methods}
        rows = []
        for client in (*range(len(self.clients)), None):
            name = free_name("pooled", self.clients) if client is None else self.clients[client]
            one = {m: loss.mean(axis=0) if client is None else loss[client] for m, loss in losses.items()}
            for method in self.methods:
                if method != base:
                    test = diebold_mariano(one[method], one[base], self.settings.horizon)
                    rows.append({"client": name, "method": method, "baseline": base} | test._asdict())
        return pd.DataFrame(rows)

    def _check_method(self, what: str, name: str) -> None:
        if name not in self.forecasts:
            raise OptionError(f"{what}={name!r} is none of the methods {', '.join(self.methods)}")

    # -- tables ----------------------------------------------------------------------------------------------

    def table(self, format: str = "text") -> str:
        """The figures as one table.

        Parameters
        ----------
        format : {"text", "markdown", "csv", "json"}
            Text and Markdown: a column per method, the best figure of a row marked, the standard error of the mean,
            and with a baseline the change of the mean against it and the p-value of the pooled comparison. CSV: one
            line per client and method, all digits. JSON: `to_dict`.

        Raises
        ------
        OptionError
            An unknown format.
        """
        if format not in _FORMATS:
            raise OptionError(f"format={format!r} is unknown: use {' or '.join(map(repr, _FORMATS))}")
        if format == "json":
            return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        if format == "csv":
            return self._csv()
        return f"{self.title()}\n\n" + _aligned(self._cells(format == "markdown"), format == "markdown")

    def title(self) -> str:
        """What the figures are, in one line."""
        how = self.settings
        length = "" if how.window_length is None else f" of {how.window_length} rows"
        tuning = "" if how.retune_every is None else f", tuned at every {how.retune_every}. origin"
        ahead = f"RMSFE, {how.n_origins} forecast(s) {how.horizon} step(s) ahead of each client"
        return f"{ahead}, {how.window} window{length}, {how.units} units{tuning}"

    def _cells(self, bold: bool) -> list[list[str]]:
        frame = self.rmsfe
        cells = [["client", *self.methods]]
        for client, row in zip(frame.index, frame.to_numpy(), strict=True):
            best = np.nanmin(row)
            cells.append([str(client), *(_marked(figure, bool(figure == best), bold) for figure in row)])
        cells.append(["s.e. of mean", *map(_figure, self.standard_errors.iloc[-1])])
        if self.settings.baseline is not None:
            cells += self._comparison_cells(frame.iloc[-1], self.settings.baseline)
        if bold:
            return cells
        # In text the best figure of a row has a mark behind it: all others keep to its column of digits.
        figures = range(1, len(frame) + 1)
        return [row if i in figures else [row[0], *(f"{text} " for text in row[1:])] for i, row in enumerate(cells)]

    def _comparison_cells(self, means: pd.Series, base: str) -> list[list[str]]:
        """Change of the mean against the baseline, and the p-value of the pooled comparison."""
        pooled = self.compare(base).groupby("client", sort=False).get_group(free_name("pooled", self.clients))
        p_values = dict(zip(pooled["method"], pooled["p_value"], strict=True))
        change = {method: 100.0 * (means[method] / means[base] - 1.0) for method in p_values}
        return [
            [f"vs {base}, %", *(f"{change[one]:+.2f}" if one in change else "" for one in self.methods)],
            [f"p, vs {base}", *(_figure(p_values[one], 3) if one in p_values else "" for one in self.methods)],
        ]

    def _csv(self) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        tests: dict[tuple[str, str], dict[str, Any]] = {}
        header = ["client", "method", "rmsfe", "standard_error"]
        extra = ["difference", "statistic", "p_value"] if self.settings.baseline is not None else []
        if extra:
            pooled = free_name("pooled", self.clients)
            for row in self.compare().to_dict("records"):
                client = self.mean_label if row["client"] == pooled else row["client"]
                tests[client, row["method"]] = {str(key): value for key, value in row.items()}
        writer.writerow(header + extra)
        figures, errors = self.rmsfe, self.standard_errors
        for client in figures.index:
            for method in self.methods:
                test = tests.get((client, method), {})
                numbers = [figures.at[client, method], errors.at[client, method], *(test.get(key) for key in extra)]
                writer.writerow([client, method, *map(_plain, numbers)])
        return stream.getvalue()

    def to_dict(self, *, forecasts: bool = False) -> dict[str, Any]:
        """Everything as plain values that JSON can hold (what is not a finite number is None).

        Parameters
        ----------
        forecasts : bool
            Also the forecasts and the actual values.
        """
        content: dict[str, Any] = {
            "settings": asdict(self.settings),
            "clients": self.clients,
            "columns": self.columns,
            "methods": self.methods,
            "rmsfe": self.rmsfe.loc[list(self.clients)].to_dict("index"),
            "mean": self.rmsfe.iloc[-1].to_dict(),
            "standard_errors": self.standard_errors.loc[list(self.clients)].to_dict("index"),
            "standard_error_of_mean": self.standard_errors.iloc[-1].to_dict(),
            "rmsfe_by_variable": {client: self.rmsfe_by_variable(client).to_dict() for client in self.clients},
            "comparison": None if self.settings.baseline is None else self.compare().to_dict("records"),
            "tuned": self.tuned,
        }
        if forecasts:
            content |= {"forecasts": self.forecasts, "actuals": self.actuals, "times": self.times}
        plain: dict[str, Any] = _plain(content)
        return plain


def _marked(value: float, best: bool, bold: bool) -> str:
    text = _figure(value)
    if bold:
        return f"**{text}**" if best else text
    return f"{text}{'*' if best else ' '}"


def _figure(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _aligned(cells: list[list[str]], markdown: bool) -> str:
    """A table of text, the first column to the left, the others to the right."""
    widths = [max(len(row[j]) for row in cells) for j in range(len(cells[0]))]
    lines = [
        [
            cell.ljust(width) if j == 0 else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in cells
    ]
    if not markdown:
        return "".join(f"{'  '.join(line).rstrip()}\n" for line in lines)
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
