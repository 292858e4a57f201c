"""The commands `rank` and `evaluate`."""

from __future__ import annotations

import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedvar_fast._cli_support import (
    GivenPath,
    NumberOr,
    echo_json,
    show_warning,
    stderr_is_terminal,
    target_file,
    write_csv,
)
from fedvar_fast.estimators import FedVAR
from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.estimators.local import AutoregressionVAR, LassoVAR, LeastSquaresVAR, LocalVAR, NuclearVAR
from fedvar_fast.evaluation import rolling_evaluation
from fedvar_fast.exceptions import OptionError
from fedvar_fast.moments import lagged_moments
from fedvar_fast.panel import Panel
from fedvar_fast.privacy import Privacy
from fedvar_fast.rank import RankChoice, select_rank, vote
from fedvar_fast.readers import read_panel

__all__ = ["evaluate", "rank"]

#: Words of --methods, the names in the tables, and the estimators of one client alone.
_ALONE: dict[str, tuple[str, type[PanelVAR]]] = {
    "ls": ("LS", LeastSquaresVAR),
    "ar": ("AR", AutoregressionVAR),
    "nuc": ("Nuc", NuclearVAR),
    "l1": ("L1", LassoVAR),
    "nuc+l1": ("Nuc+L1", LocalVAR),
}
_FEDVAR = "fedvar"
_METHODS = (*_ALONE, _FEDVAR)
_DATA_ENDINGS = (".csv", ".csv.gz", ".parquet")


def _data_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of reading DATA, as the other commands have them."""
    options = (
        click.option("--missing", type=click.Choice(["error", "drop"]), default="error", show_default=True,
                     help="Missing values and gaps: an error, or use only rows whose lags are all there."),
        click.option("--time", metavar="COL", help="Column of times, where it is not to be found by itself."),
        click.option("--client", metavar="COL", help="Column of clients, where DATA is one long file."),
        click.option("--freq", metavar="F", help="Frequency such as MS or QS, where it is not to be inferred."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _read(data: str, missing: str, time: str | None, client: str | None, freq: str | None) -> Panel:
    step: Any = int(freq) if freq is not None and freq.isdecimal() else freq
    return read_panel(data, client=client, time=time, freq=step, missing=missing)


@contextmanager
def _each_warning_once() -> Iterator[None]:
    """Of the same warning at every origin, show the first."""
    shown: set[str] = set()

    def show(message: Warning | str, *_args: Any, **_kwargs: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            show_warning(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


# -- rank ----------------------------------------------------------------------------------------------------


@click.command(short_help="How many factors the clients share.")
@click.argument("data", type=GivenPath())
@click.option("--order", type=int, default=1, show_default=True, help="Lags.")
@click.option("--max-rank", type=int, help="Singular values the rule looks at.  [default: min(d, 10)]")
@click.option("--nuclear-penalty", type=NumberOr("cv"), metavar="[cv|X]", default="cv", show_default=True,
              help="Penalty of the low-rank parts; cv: by rolling forecasts.")  # fmt: skip
@click.option("--l1-penalty", type=NumberOr("cv"), metavar="[cv|X]", default="cv", show_default=True,
              help="Penalty of the sparse parts; cv: by rolling forecasts.")  # fmt: skip
@click.option("--clip", type=float, metavar="SD", help="Winsorise at that many standard deviations first.")
@_data_options
@click.option("--jobs", type=int, help="Threads; no result depends on it.  [default: every core]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def rank(
    data: str, order: int, max_rank: int | None, nuclear_penalty: str | float, l1_penalty: str | float,
    clip: float | None, missing: str, time: str | None, client: str | None, freq: str | None, jobs: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Choose the rank of the shared part of DATA: the ridge-type ratio rule of each client, then their vote.

    Each client fits low rank plus sparse by itself; its rank is where the singular values of the low-rank part drop
    most, the smallest ratio (s[r+1] + c) / (s[r] + c). The most frequent rank wins, the smaller one among equals. A
    client whose low-rank part is zero does not vote; when none votes the rank is 0, and nothing is shared.
    """
    panel = _read(data, missing, time, client, freq)
    model = LocalVAR(order, nuclear_penalty=nuclear_penalty, l1_penalty=l1_penalty, clip=clip, n_jobs=jobs).fit(panel)
    rows = {name: lagged_moments(series.values, order).n_rows for name, series in panel.items()}
    choices = {
        name: select_rank(
            np.linalg.svd(model.low_rank_[name], compute_uv=False), rows[name], order, len(panel.columns),
            max_rank=max_rank,
        )
        for name in panel.clients
    }  # fmt: skip
    chosen = vote({name: choice.rank for name, choice in choices.items()})
    if as_json:
        clients = {name: {"rows": rows[name]} | _choice_fields(choice) for name, choice in choices.items()}
        echo_json({"data": data, "order": order, "clients": clients, "rank": chosen})
    else:
        click.echo(_rank_table(choices, rows, chosen), nl=False)


def _choice_fields(choice: RankChoice) -> dict[str, Any]:
    return {
        "rank": choice.rank, "ridge": choice.ridge, "singular_values": choice.singular_values, "ratios": choice.ratios,
    }  # fmt: skip


def _rank_table(choices: dict[str, RankChoice], rows: dict[str, int], chosen: int) -> str:
    """Two lines per client, singular values and ratios, and below them the vote."""
    n_shown = max(len(choice.ratios) for choice in choices.values()) + 1
    name_width = max(6, *map(len, choices))
    head = f"{'client':<{name_width}} {'rows':>6} {'rank':>4}  {'':<5}"
    lines = [head + "".join(f"{r:>9}" for r in range(1, n_shown + 1))]
    for name, choice in choices.items():
        own = "-" if choice.rank is None else str(choice.rank)
        values = "".join(f"{value:>9.4f}" for value in choice.singular_values[:n_shown])
        lines.append(f"{name:<{name_width}} {rows[name]:>6} {own:>4}  {'s':<5}{values}")
        if choice.rank is None:
            continue
        marks = ("*" if r == choice.rank else " " for r in range(1, n_shown))
        ratios = "".join(f"{ratio:>8.4f}{mark}" for ratio, mark in zip(choice.ratios, marks, strict=True))
        lines.append(f"{'':<{name_width + 13}}{'ratio':<5} {ratios}".rstrip())
    counts = Counter(choice.rank for choice in choices.values())
    votes = [f"{counts[r]} for {r}" for r in sorted(one for one in counts if one is not None)]
    votes += [f"{counts[None]} without a vote (zero low-rank part)"] if counts[None] else []
    return "\n".join([*lines, "", f"Votes: {', '.join(votes)}", f"Rank: {chosen}", ""])


# -- evaluate ------------------------------------------------------------------------------------------------


class _Methods(click.ParamType):
    """Words of methods, with commas between them."""

    name = "methods"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The words as a tuple, each known and there once."""
        if isinstance(value, tuple):
            return value
        words = tuple(word.strip().lower() for word in value.split(","))
        for word in words:
            if word not in _METHODS:
                self.fail(f"{word!r} is no method; they are {', '.join(_METHODS)}.", param, ctx)
        if len(set(words)) < len(words):
            self.fail("a method is named twice.", param, ctx)
        return words


class _PrivacyPair(click.ParamType):
    """Two numbers, epsilon and delta, with a comma between them."""

    name = "EPS,DELTA"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The two numbers."""
        if isinstance(value, tuple):
            return value
        try:
            epsilon, delta = (float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not two numbers such as 2,1e-5.", param, ctx)
        return epsilon, delta


@click.command(short_help="Compare methods by rolling forecasts.")
@click.argument("data", type=GivenPath())
@click.option("--order", type=int, default=1, show_default=True, help="Lags.")
@click.option("--origins", type=int, default=20, show_default=True, help="Last rows of each client that are forecast.")
@click.option("--horizon", type=int, default=1, show_default=True, help="Steps ahead.")
@click.option("--window", type=click.Choice(["expanding", "rolling"]), default="expanding", show_default=True,
              help="Fit on all rows before an origin, or on the last --window-length of them.")  # fmt: skip
@click.option("--window-length", type=int, metavar="N", help="Rows of a rolling window.")
@click.option("--methods", type=_Methods(), default=",".join(_METHODS), show_default=True, help="Which, with commas.")
@click.option("--rank", type=NumberOr("auto", int), metavar="[auto|R]", default="auto", show_default=True,
              help="Rank of FedVAR's shared part.")  # fmt: skip
@click.option("--privacy", type=_PrivacyPair(), multiple=True,
              help="Also FedVAR with this epsilon and delta of each round (2,1e-5); repeatable.")  # fmt: skip
@click.option("--epsilon", type=float, help="The same with --delta, for one setting.")
@click.option("--delta", type=float, help="Goes with --epsilon.")
@click.option("--retune-every", type=int, metavar="M",
              help="Tune again at every M-th origin.  [default: at the first only]")  # fmt: skip
@click.option("--units", type=click.Choice(["original", "scaled"]), default="original", show_default=True,
              help="Errors as they are, or in standard deviations of the training rows.")  # fmt: skip
@click.option("--baseline", metavar="METHOD", help="Compare the others with this one (also mean, zero).")
@click.option("--clip", type=float, metavar="SD", help="Winsorise at that many standard deviations first.")
@_data_options
@click.option("--format", "form", type=click.Choice(["text", "markdown", "csv", "json"]), default="text",
              show_default=True, help="Of the table; CSV and JSON have all digits.")  # fmt: skip
@click.option("--out", type=GivenPath(), metavar="FILE", help="Write the table there instead.")
@click.option("--jobs", type=int, help="Threads; no result depends on it.  [default: every core]")
@click.option("--seed", type=int, help="Tests only: noise from this seed, so that private columns can be repeated.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
def evaluate(
    data: str, order: int, origins: int, horizon: int, window: str, window_length: int | None,
    methods: tuple[str, ...], rank: str | int, privacy: tuple[tuple[float, float], ...], epsilon: float | None,
    delta: float | None, retune_every: int | None, units: str, baseline: str | None, clip: float | None,
    missing: str, time: str | None, client: str | None, freq: str | None, form: str, out: str | None,
    jobs: int | None, seed: int | None, quiet: bool,
) -> None:  # fmt: skip
    """Forecast the last rows of DATA by several methods, each from the rows before, and compare their errors.

    Every option that the data choose is tuned on the rows before the first origin. The methods: ls (least squares),
    ar (each variable's own lags), nuc (low rank), l1 (sparse), nuc+l1 (both), all of them for each client alone, and
    fedvar. The table has the root mean squared forecast error by client and method, beside the training mean and zero
    as forecasts.
    """
    if out is not None:
        _check_output(out, data)
    if (epsilon is None) != (delta is None):
        raise click.UsageError("--epsilon and --delta go together.")
    pairs = [*privacy, *([] if epsilon is None or delta is None else [(epsilon, delta)])]
    estimators = _estimators(methods, pairs, order, {"rank": rank, "random_state": seed}, clip)
    result = _evaluated(
        _read(data, missing, time, client, freq), estimators, not quiet, n_origins=origins, horizon=horizon,
        window=window, window_length=window_length, retune_every=retune_every, units=units,
        baseline=_method_name(baseline, estimators), n_jobs=jobs,
    )  # fmt: skip
    text = result.table(form)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_csv(out, text)
        click.echo(f"wrote the table: {out}")


def _evaluated(panel: Panel, estimators: dict[str, PanelVAR], talk: bool, **options: Any) -> Any:
    progress = talk and stderr_is_terminal() and importlib.util.find_spec("tqdm") is not None
    with _each_warning_once():
        return rolling_evaluation(panel, estimators, progress=progress, **options)


def _estimators(
    methods: tuple[str, ...], pairs: list[tuple[float, float]], order: int, federated: dict[str, Any],
    clip: float | None,
) -> dict[str, PanelVAR]:  # fmt: skip
    """The methods by the names that the tables show."""
    found: dict[str, PanelVAR] = {}
    for word in methods:
        if word == _FEDVAR:
            found["FedVAR"] = FedVAR(order, clip=clip, **federated)
        else:
            name, kind = _ALONE[word]
            found[name] = kind(order, clip=clip)
    for epsilon, delta in pairs:
        noise = Privacy(epsilon, delta, calibration="paper", reproducible=federated["random_state"] is not None)
        found[f"FedVAR({epsilon:g},{delta:g})"] = FedVAR(order, clip=clip, privacy=noise, **federated)
    if pairs and federated["random_state"] is not None:
        show_warning("with --seed the noise is known to whoever knows the seed: these fits are NOT PRIVATE")
    return found


def _method_name(given: str | None, estimators: dict[str, PanelVAR]) -> str | None:
    """The name in the table of a method written in any case."""
    return next((name for name in estimators if given is not None and name.lower() == given.strip().lower()), given)


def _check_output(out: str, data: str) -> None:
    """The table must not replace data, nor look like another client the next time."""
    target_file(out)
    source, target = Path(data).resolve(), Path(out).resolve()
    if target == source or (target.parent == source and target.name.lower().endswith(_DATA_ENDINGS)):
        raise OptionError(f"--out {out}: this is where the data are read from, give a file elsewhere")
