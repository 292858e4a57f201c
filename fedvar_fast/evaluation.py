"""Rolling forecasts: every method forecasts the last rows of every client from what came before them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from fedvar_fast._evaluation_result import FLOORS, EvaluationResult, Settings
from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.exceptions import ConstantColumnWarning, DataError, OptionError, OptionTypeError
from fedvar_fast.kernels import one_blas_thread, resolve_n_jobs
from fedvar_fast.panel import ClientSeries, Panel, as_panel
from fedvar_fast.scaling import Scaling

__all__ = ["EvaluationResult", "rolling_evaluation"]

_WINDOWS, _UNITS = ("expanding", "rolling"), ("original", "scaled")


def rolling_evaluation(
    panel: Any,
    estimators: Mapping[str, PanelVAR],
    n_origins: int = 20,
    *,
    horizon: int = 1,
    window: str = "expanding",
    window_length: int | None = None,
    retune_every: int | None = None,
    units: str = "original",
    baseline: str | None = None,
    n_jobs: int | None = 1,
    progress: bool = False,
) -> EvaluationResult:
    """Forecast the last `n_origins` rows of every client, each `horizon` steps ahead, by several methods.

    Origin ``i = 0 .. n-1`` of client ``k`` uses its rows before ``end = T_k - n - h + 1 + i`` and forecasts row
    ``end + h - 1``; clients of different length are aligned by their ends. Centre, scale and everything tuned come
    from the rows before the origin only. At the first origin every option that the data choose (``"cv"``, ``"auto"``)
    is tuned, and then kept; between tunings an expanding window is updated with the new row, a rolling one fitted
    again.

    Parameters
    ----------
    panel : Panel, or anything `fedvar_fast.as_panel` takes
    estimators : mapping of name to estimator
        They are cloned, never changed. ``"zero"`` (forecasts of 0) and ``"mean"`` (the mean of the training window)
        are always added.
    n_origins : int
        ``n``.
    horizon : int
        ``h``.
    window : {"expanding", "rolling"}
        All rows before the origin, or the last `window_length` of them.
    window_length : int, optional
        By default each client's rows before its first origin.
    retune_every : int, optional
        Tune again at every so-many-th origin; by default at the first only.
    units : {"original", "scaled"}
        Errors as they are, or divided by each variable's standard deviation in the training window.
    baseline : str, optional
        The method that `EvaluationResult.compare` and the tables compare with.
    n_jobs : int, optional
        Threads, over methods and tunings; each then gets its share of the cores. None: every core. No result depends
        on it.
    progress : bool
        A progress bar on standard error (needs tqdm).

    Returns
    -------
    EvaluationResult

    Raises
    ------
    OptionError, OptionTypeError
        An option out of its range, no estimators, a name that is taken, a baseline that is not there.
    DataError
        A client with too few rows for the origins or the window, or with missing values in its last rows.

    Notes
    -----
    With an expanding window the bounds of an estimator's `clip` stay those of the last tuning, as in `update`.
    """
    _check_options(n_origins, horizon, window, window_length, retune_every, units)
    methods = _checked_methods(estimators, baseline)
    data = as_panel(panel)
    order = max(int(one.order) for one in methods.values())
    jobs = resolve_n_jobs(n_jobs)
    plan = _Plan(data, n_origins, horizon, window, window_length, order)
    _check_rows(data, plan, order)
    centers, scales = _training_statistics(data, plan)
    segments = _segments(n_origins, retune_every)
    # One BLAS thread: many small fits gain nothing from more, and no sum then depends on how many there are.
    with one_blas_thread(), _progress_bar(progress, len(methods) * n_origins) as advance:
        runs = _run_all(methods, data, plan, segments, jobs, advance)
    forecasts = {name: _joined([runs[name, one.start] for one in segments]) for name in methods}
    forecasts |= {"mean": centers, "zero": {name: np.zeros_like(center) for name, center in centers.items()}}
    return EvaluationResult(
        clients=data.clients,
        columns=data.columns,
        forecasts=forecasts,
        actuals={name: np.array(series.values[len(series) - n_origins :]) for name, series in data.items()},
        times={name: list(series.time.tail(n_origins).to_labels()) for name, series in data.items()},
        scales=scales,
        tuned={
            name: {one.start: runs[name, one.start].options for one in segments if runs[name, one.start].options}
            for name in methods
        },
        settings=Settings(n_origins, horizon, window, window_length, retune_every, units, baseline),
    )


# -- what is asked for ---------------------------------------------------------------------------------------


def _check_options(
    n_origins: int, horizon: int, window: str, window_length: int | None, retune_every: int | None, units: str
) -> None:
    _whole("n_origins", n_origins)
    _whole("horizon", horizon)
    for name, count in (("window_length", window_length), ("retune_every", retune_every)):
        if count is not None:
            _whole(name, count)
    for name, word, allowed in (("window", window, _WINDOWS), ("units", units, _UNITS)):
        if word not in allowed:
            raise OptionError(f"{name}={word!r} is unknown: use {' or '.join(map(repr, allowed))}")
    if window_length is not None and window != "rolling":
        raise OptionError(
            f"window_length={window_length} belongs to window='rolling'; an expanding window has no length"
        )


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name}={value!r} is no whole number of 1 or more")


def _checked_methods(estimators: Mapping[str, PanelVAR], baseline: str | None) -> dict[str, PanelVAR]:
    if not isinstance(estimators, Mapping) or not estimators:
        raise OptionError("estimators is empty: give a mapping of names to estimators, such as {'FedVAR': FedVAR(4)}")
    for name, one in estimators.items():
        if not isinstance(name, str) or not name.strip():
            raise OptionError(f"estimators: the name {name!r} is no text")
        if name in FLOORS:
            raise OptionError(f"estimators: the name {name!r} is that of a forecast that is always there; take another")
        if not isinstance(one, PanelVAR):
            raise OptionTypeError(
                f"estimators[{name!r}] is {one!r}: give an estimator of fedvar_fast, such as FedVAR(4)"
            )
        one._check_options()
    if baseline is not None and baseline not in (*estimators, *FLOORS):
        raise OptionError(f"baseline={baseline!r} is none of the methods {', '.join([*estimators, *FLOORS])}")
    return dict(estimators)


class _Plan:
    """Which rows of which client an origin may see."""

    def __init__(
        self, data: Panel, n_origins: int, horizon: int, window: str, window_length: int | None, order: int
    ) -> None:
        self.horizon, self.n_origins, self.rolling = int(horizon), int(n_origins), window == "rolling"
        ahead = self.n_origins + self.horizon - 1
        self.first = {name: n_rows - ahead for name, n_rows in data.n_rows.items()}
        least = order + 2 if window_length is None else int(window_length)
        what = f"order {order}" if window_length is None else f"a window of window_length={window_length} rows"
        if least < order + 2:
            raise OptionError(
                f"window_length={window_length} is too short: order {order} needs at least {order + 2} rows"
            )
        short = [f"{name!r} ({data.n_rows[name]})" for name, first in self.first.items() if first < least]
        if short:
            raise DataError(
                f"too few rows: client {', '.join(short)}; {self.n_origins} origin(s) at horizon {self.horizon} and "
                f"{what} need at least {least + ahead} rows of each client: take fewer origins"
                f"{'' if window_length is None else ', a shorter window'}, or leave the client out"
            )
        self.length = {name: first if window_length is None else least for name, first in self.first.items()}

    def rows(self, origin: int) -> dict[str, slice]:
        """The training window of every client."""
        return {
            name: slice(first + origin - self.length[name] if self.rolling else 0, first + origin)
            for name, first in self.first.items()
        }

    def new_rows(self, origin: int) -> dict[str, slice]:
        """What an expanding window has gained since the origin before."""
        return {name: slice(first + origin - 1, first + origin) for name, first in self.first.items()}


def _check_rows(data: Panel, plan: _Plan, order: int) -> None:
    """The rows that are forecast or are lags of a forecast must be whole."""
    for name, series in data.items():
        start = plan.first[name] - order
        gaps = np.argwhere(np.isnan(series.values[start:]))
        if len(gaps):
            row, column = gaps[0]
            raise DataError(
                f"client {name!r} has a missing value in column {data.columns[column]!r} at "
                f"{series.time.label(start + int(row))}: its last {len(series) - start} rows are forecast or needed as "
                "lags, fill them or take fewer origins"
            )


def _segments(n_origins: int, retune_every: int | None) -> list[range]:
    """The origins that share one tuning."""
    step = n_origins if retune_every is None else int(retune_every)
    return [range(start, min(start + step, n_origins)) for start in range(0, n_origins, step)]


# -- what is done --------------------------------------------------------------------------------------------


def _training_statistics(data: Panel, plan: _Plan) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Mean and standard deviation of every training window, (n_origins, d) by client."""

    def scaling(series: ClientSeries, origin: int) -> Scaling:
        rows = series.values[plan.rows(origin)[series.name]]
        return Scaling.from_values(rows, client=series.name, columns=data.columns)

    with warnings.catch_warnings():
        # The estimators themselves say so; once more for every origin tells nothing new.
        warnings.simplefilter("ignore", ConstantColumnWarning)
        found = {name: [scaling(one, origin) for origin in range(plan.n_origins)] for name, one in data.items()}
    centers = {name: np.stack([one.center for one in each]) for name, each in found.items()}
    return centers, {name: np.stack([one.scale for one in each]) for name, each in found.items()}


@dataclass(frozen=True)
class _Run:
    """Forecasts (origins, d) by client of one method between two tunings, and the options that were tuned."""

    forecasts: dict[str, FloatArray]
    options: dict[str, Any]


def _run_all(
    methods: Mapping[str, PanelVAR], data: Panel, plan: _Plan, segments: Sequence[range], jobs: int,
    advance: Callable[[], None],
) -> dict[tuple[str, int], _Run]:  # fmt: skip
    """All methods over all segments, by method and first origin."""
    tasks = {(name, one.start): (estimator, one) for name, estimator in methods.items() for one in segments}
    workers = min(jobs, len(tasks))
    # The kernels have threads of their own: together they should not be more than the cores.
    share = max(1, resolve_n_jobs(None) // workers)

    def run(task: tuple[PanelVAR, range]) -> _Run:
        estimator, origins = task
        own = clone(estimator)
        if workers > 1 and own.n_jobs is None:
            own.set_params(n_jobs=share)
        return _run_segment(own, data, plan, origins, advance)

    if workers == 1:
        return {key: run(task) for key, task in tasks.items()}
    with ThreadPoolExecutor(workers) as pool:
        futures = {key: pool.submit(run, task) for key, task in tasks.items()}
        try:
            return {key: future.result() for key, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_segment(estimator: PanelVAR, data: Panel, plan: _Plan, origins: range, advance: Callable[[], None]) -> _Run:
    """Tune at the first origin, then go on with what was chosen there."""
    model = estimator.fit(data.take(plan.rows(origins.start)))
    last_steps = [model.forecast_values(plan.horizon)]
    advance()
    fixed = model.frozen()
    options = _tuned_options(estimator, fixed)
    for origin in origins[1:]:
        if plan.rolling or not model.can_update:
            # A private model has a budget for the rows of its fit: every origin's fit is one of its own.
            model = clone(fixed).fit(data.take(plan.rows(origin)))
        else:
            model.update(data.take(plan.new_rows(origin)))
        last_steps.append(model.forecast_values(plan.horizon))
        advance()
    return _Run({name: np.stack([step[name][-1] for step in last_steps]) for name in data.clients}, options)


def _tuned_options(before: PanelVAR, after: PanelVAR) -> dict[str, Any]:
    """The options that were a word, such as "cv", or a grid, and are now what the data chose."""
    given, chosen = before.get_params(deep=False), after.get_params(deep=False)
    open_ones = {name: value for name, value in given.items() if isinstance(value, str | Sequence | np.ndarray)}
    return {name: chosen[name] for name, value in open_ones.items() if not np.array_equal(value, chosen[name])}


def _joined(runs: Sequence[_Run]) -> dict[str, FloatArray]:
    return {name: np.concatenate([run.forecasts[name] for run in runs]) for name in runs[0].forecasts}


@contextmanager
def _progress_bar(wanted: bool, total: int) -> Iterator[Callable[[], None]]:
    if not wanted:
        yield lambda: None
        return
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise OptionError("progress=True needs tqdm: pip install 'fedvar_fast[cli]'") from error
    lock = threading.Lock()
    with tqdm(total=total, desc="Forecasts", unit="origin") as bar:

        def advance() -> None:
            with lock:
                bar.update()

        yield advance
