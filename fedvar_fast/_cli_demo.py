"""The demo of the command line: the main job end to end on simulated files, with honest numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators import FedVAR
from fedvar_fast.exceptions import OptionError
from fedvar_fast.moments import lagged_moments
from fedvar_fast.panel import Panel
from fedvar_fast.readers import read_panel, write_panel
from fedvar_fast.simulate import SimulatedTruth, simulate_panel

__all__ = ["run", "work_folder"]

_CLIENTS, _DIM, _ORDER, _RANK, _ROWS, _HELD_OUT, _NONZEROS = 5, 20, 1, 2, 150, 20, 1
_SHOWN_STEPS, _SHOWN_COLUMNS = 3, 5
_MODEL = "model.npz"


@contextmanager
def work_folder(folder: str | None, keep: bool) -> Iterator[Path]:
    """The folder that was asked for, or a temporary one, which is removed unless `keep`."""
    if folder is not None:
        target = Path(folder)
        if target.exists() and not target.is_dir():
            raise OptionError(f"{target} is a file: give a folder")
        if target.is_dir() and any(target.iterdir()):
            raise OptionError(f"{target} is not empty: give a new folder, so that your files stay as they are")
        yield target
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="fedvar-fast-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="fedvar-fast-demo-") as name:
            yield Path(name)


def run(folder: Path, seed: int, kept: bool) -> Iterator[str]:
    """Do it, and tell line by line.

    Parameters
    ----------
    folder : Path
        Where the files go.
    seed : int
    kept : bool
        Whether the files are there afterwards.

    Yields
    ------
    str
        Lines for the user.
    """
    n_rows = _ROWS + _HELD_OUT
    simulated, truth = simulate_panel(
        _CLIENTS, _DIM, _ORDER, n_rows, _RANK, nonzeros_per_row=_NONZEROS, stability=0.9, random_state=seed
    )
    paths = write_panel(simulated, folder)
    yield f"1. Simulated {_CLIENTS} clients, {_DIM} variables, {n_rows} monthly rows each, one CSV file a client:"
    yield f"   {paths[0]} ... {paths[-1].name}"
    yield f"   Their dynamics share a part of rank {_RANK}; each client adds {_NONZEROS} entry a row of its own."
    panel = read_panel(folder)
    training = panel.slice(0, -_HELD_OUT)
    model = FedVAR(_ORDER, _RANK).fit(training)
    model.save(folder / _MODEL)
    yield f"2. Read the files and fitted order {_ORDER}, rank {_RANK} on the first {_ROWS} rows, in"
    yield f"   {model.n_rounds_} rounds. In each a client sent a projected gradient; its rows stayed with it."
    yield "3. All together, against each client alone (least squares on its own rows):"
    yield from _indented(_comparison(model, training, panel, truth))
    yield f"4. The first forecasts of {model.clients_[0]} after the fitted rows, of {_SHOWN_COLUMNS} variables:"
    yield from _indented(_first_forecasts(model))
    if kept:
        yield f"The files are in {folder}. Go on with:"
        yield f"   fedvar-fast forecast {folder / _MODEL} --steps 8 --level 90"
        yield f"   fedvar-fast report {folder / _MODEL}"
    else:
        yield "The files are removed now; --dir DIR or --keep keeps them."


def _indented(lines: list[str]) -> list[str]:
    """Lines of a block, with an empty line on either side."""
    return ["", *(f"   {line}".rstrip() for line in lines), ""]


def _comparison(model: FedVAR, training: Panel, panel: Panel, truth: SimulatedTruth) -> list[str]:
    """The table of errors, and what it says."""
    shared = np.mean([_original(model.A0_, model, name) for name in model.clients_], axis=0)
    together = {name: model.coef_original(name) for name in model.clients_}
    alone = {name: _least_squares(model, training, name) for name in model.clients_}
    means = {name: np.zeros_like(coef) for name, coef in truth.coef.items()}
    alone_shared = float(np.mean([_relative(_truncated(coef), truth.A0) for coef in alone.values()]))
    errors = {
        "all together (FedVAR)": (_relative(shared, truth.A0), _mean_error(together, truth)),
        "each client alone": (alone_shared, _mean_error(alone, truth)),
        "mean of the rows": None,
        "true coefficients": None,
    }
    coefs = (together, alone, means, truth.coef)
    forecasts = [_one_step_error(coef, model, panel, centred=coef is not truth.coef) for coef in coefs]
    lines = [f"{'':<24}{'error of A_0':>14}{'error of A_k':>14}{'one-step error':>16}"]
    for (name, pair), error in zip(errors.items(), forecasts, strict=True):
        shown = ("-", "-") if pair is None else tuple(f"{value:.3f}" for value in pair)
        lines.append(f"{name:<24}{shown[0]:>14}{shown[1]:>14}{error:>16.4f}")
    return [*lines, "", *_in_words(_mean_error(together, truth), _mean_error(alone, truth), forecasts)]


def _in_words(together: float, alone: float, forecasts: list[float]) -> list[str]:
    """What the numbers are, and what they say."""
    change = 1.0 - together / alone
    gained = f"{abs(change):.0%} {'smaller' if change >= 0 else 'LARGER'} together than alone"
    than_alone, than_mean = ("better" if forecasts[0] < other else "NOT better" for other in forecasts[1:3])
    return [
        "A_k: the matrix of a client; A_0: the shared part (alone: the nearest matrix of its rank to the client's",
        "own estimate); errors are ||estimate - truth||_F / ||truth||_F, the mean over clients.",
        f"One-step error: root mean square on the last {_HELD_OUT} rows of each client, which were held out.",
        "",
        f"The error of A_k is {gained}. The forecasts together are {than_alone} than alone,",
        f"and {than_mean} than the mean.",
    ]


def _original(coef: FloatArray, model: FedVAR, client: str) -> FloatArray:
    """Coefficients of scaled data in the units of the data."""
    scale = model.scale_[client]
    return coef * np.outer(scale, np.tile(1.0 / scale, _ORDER))


def _least_squares(model: FedVAR, training: Panel, client: str) -> FloatArray:
    """What a client reaches alone: minimum-norm least squares of its scaled data, in its units."""
    center, scale = model.center_[client], model.scale_[client]
    moments = lagged_moments(training[client].values, _ORDER, center=center).standardized(center, scale)
    solution = np.linalg.lstsq(moments.xx, moments.yx.T, rcond=None)[0]
    return _original(np.asarray(solution.T, dtype=np.float64), model, client)


def _truncated(coef: FloatArray) -> FloatArray:
    """The nearest matrix of the shared rank."""
    u, s, vt = np.linalg.svd(coef, full_matrices=False)
    return np.asarray((u[:, :_RANK] * s[:_RANK]) @ vt[:_RANK])


def _relative(estimate: FloatArray, truth: FloatArray) -> float:
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


def _mean_error(coefs: dict[str, FloatArray], truth: SimulatedTruth) -> float:
    return float(np.mean([_relative(coef, truth.coef[name]) for name, coef in coefs.items()]))


def _one_step_error(coefs: dict[str, FloatArray], model: FedVAR, panel: Panel, *, centred: bool) -> float:
    """Root mean squared one-step error on the rows held out, pooled over clients and variables.

    The forecasts are around the centre of the fitted rows, or around zero, the true mean.
    """
    residuals = []
    for name, coef in coefs.items():
        rows = panel[name].values - (model.center_[name] if centred else 0.0)
        lags = np.hstack([rows[_ORDER - lag : len(rows) - lag] for lag in range(1, _ORDER + 1)])
        residuals.append((rows[_ORDER:] - lags @ coef.T)[-_HELD_OUT:])
    return float(np.sqrt(np.mean(np.square(residuals))))


def _first_forecasts(model: FedVAR) -> list[str]:
    """The next rows of the first client as a table."""
    frame: pd.DataFrame = model.forecast(_SHOWN_STEPS)
    table = frame[frame[model.client_label_] == model.clients_[0]]
    columns = [model.time_label_, *model.columns_[:_SHOWN_COLUMNS]]
    return str(table[columns].to_string(index=False, float_format=lambda x: f"{x:.3f}")).splitlines()
