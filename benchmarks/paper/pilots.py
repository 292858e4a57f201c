"""Constants of the penalties and of the step, tuned by rolling forecasts on pilot panels that are never evaluated.

The paper tunes every replication by rolling one-step forecasts. Here the squared errors of these forecasts are summed
over a few pilot panels and all their clients, and one choice serves all replications of a cell: less noise in the
choice, and a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper.design import ORDER, Cell, l1_unit, moments_of, nuclear_unit, panel_of, seed_of, standardize
from benchmarks.paper.runner import Run, replicate
from fedvar_fast._typing import FloatArray
from fedvar_fast.federation.client import personal_part
from fedvar_fast.federation.inprocess import SharedFit, SharedOptions, fit_shared
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.privacy import Privacy
from fedvar_fast.solvers.admm import AdmmState, FactoredMoments, LowRankSparseResult, low_rank_plus_sparse

#: Rows of a pilot series that are forecast, by one fit on the rows before them.
ORIGINS = 20
LOCAL_PILOTS, SHARED_PILOTS = 8, 6
#: Constants of lambda and omega, in units of ``2 sqrt(pd/T)`` and ``2 sqrt(log(pd)/T)``.
NUCLEAR = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25)
L1 = (0.5, 0.75, 1.0, 1.5, 2.0)
#: Multiples of the safe step 1/H, and constants of varpi.
STEPS = tuple(2.0**-j for j in range(9))
SHARED_L1 = (0.5, 0.75, 1.0, 1.5, 2.0)
TOLERANCE = 1e-5

Budget = tuple[float, float] | None
WORDS = (
    f"penalties and step by rolling forecasts of the last {ORIGINS} rows of {LOCAL_PILOTS} (local) and {SHARED_PILOTS} "
    "(federated) pilot panels with seeds of their own (purpose 'pilot'), one choice for all replications (CSV)"
)


def privacy_of(budget: Sequence[float] | None) -> Privacy | None:
    """The paper's noise in simulations: ``sigma = sqrt(2 ln(1.25/delta)) / epsilon`` a round."""
    if budget is None:
        return None
    return Privacy(budget[0], budget[1], calibration="paper", kappa=1.0, reproducible=True)


# -- the two estimators with constants -----------------------------------------------------------------------


def local_fit(
    moments: LaggedMoments | FactoredMoments, constants: Sequence[float], start: AdmmState | None = None
) -> LowRankSparseResult:
    """Equation (4) with ``lambda = a 2 sqrt(pd/T)``, ``omega = b 2 sqrt(log(pd)/T)``."""
    n = moments.moments.n_rows if isinstance(moments, FactoredMoments) else moments.n_rows
    nuclear, l1 = constants[0] * nuclear_unit(n), constants[1] * l1_unit(n)
    return low_rank_plus_sparse(moments, nuclear, l1, tol=TOLERANCE, start=start, warn=False)


def shared_fit(
    moments: Mapping[str, LaggedMoments], start: FloatArray, rank: int, factor: float, budget: Sequence[float] | None,
    seed: int,
) -> SharedFit:  # fmt: skip
    """Stage I from the local start; where that is zero, from the spectral one."""
    options = SharedOptions(rank=rank, start=start if np.any(start) else None, step_factor=factor)
    return fit_shared(moments, options, privacy_of(budget), random_state=seed)


def personal_fit(moments: LaggedMoments, shared: SharedFit, client: str, constant: float) -> FloatArray:
    """Stage II as in the paper: 20 FISTA steps."""
    penalty = constant * l1_unit(moments.n_rows)
    return personal_part(moments, shared.point, penalty, curvature=shared.curvatures[client], n_jobs=1).coef


# -- pilots of the single client -----------------------------------------------------------------------------


def local_pilot(settings: dict[str, Any], number: int) -> list[list[float]]:
    """Squared forecast errors over the constants (a, b), summed over the clients of one pilot panel."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    arrays, _ = panel_of(cell, seed_of("pilot", cell, number))
    total = np.zeros((len(settings["nuclear"]), len(settings["l1"])))
    for series in arrays.values():
        known, x, y = _split(series)
        factored = FactoredMoments(known)
        state = None
        for i, a in enumerate(settings["nuclear"]):
            for j, b in enumerate(settings["l1"]):
                found = local_fit(factored, (a, b), state)
                state = found.state
                total[i, j] += np.sum((y - x @ (found.low_rank + found.sparse).T) ** 2)
    return total.tolist()


def _split(series: FloatArray) -> tuple[LaggedMoments, FloatArray, FloatArray]:
    """Moments of the rows before the origins, and lags and responses of the rows that are forecast."""
    centred = standardize(series, scale=False, head=len(series) - ORIGINS)
    return moments_of(centred[:-ORIGINS]), centred[-ORIGINS - ORDER : -ORDER], centred[-ORIGINS:]


def local_constants(run: Run, lengths: Sequence[int]) -> dict[int, tuple[float, float]]:
    """The best (a, b) of each length; those of K = 5 serve every K."""
    cells = [Cell(n_rows).words() | {"nuclear": list(NUCLEAR), "l1": list(L1)} for n_rows in lengths]
    found = replicate(run, "local_pilot", local_pilot, cells, LOCAL_PILOTS)
    chosen = {}
    for n_rows, errors in zip(lengths, found, strict=True):
        i, j = _smallest(np.sum(errors, axis=0))
        chosen[n_rows] = NUCLEAR[i], L1[j]
    return chosen


def _smallest(errors: FloatArray) -> tuple[int, ...]:
    """Of equal errors the last: the largest penalties, the smallest step."""
    flat = errors.size - 1 - int(np.argmin(errors.ravel()[::-1]))
    return tuple(int(place) for place in np.unravel_index(flat, errors.shape))


# -- pilots of the federation --------------------------------------------------------------------------------


def shared_pilot(settings: dict[str, Any], number: int) -> list[list[list[float]]]:
    """Squared forecast errors over (budget, step, constant of varpi), summed over the clients of a pilot panel."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    arrays, _ = panel_of(cell, seed_of("pilot", cell, number))
    parts = {client: _split(series) for client, series in arrays.items()}
    moments = {client: known for client, (known, _, _) in parts.items()}
    start = local_fit(next(iter(moments.values())), settings["local"]).low_rank
    errors = np.zeros((len(settings["budgets"]), len(settings["steps"]), len(settings["l1"])))
    for i, budget in enumerate(settings["budgets"]):
        for j, factor in enumerate(settings["steps"]):
            shared = shared_fit(moments, start, cell.rank, factor, budget, seed_of("pilot noise", cell, number))
            base = shared.point.dense()
            for client, (known, x, y) in parts.items():
                for m, constant in enumerate(settings["l1"]):
                    coef = base + personal_fit(known, shared, client, constant)
                    errors[i, j, m] += np.sum((y - x @ coef.T) ** 2)
    return errors.tolist()


def shared_constants(
    run: Run, cells: Sequence[Cell], local: Mapping[int, tuple[float, float]], budgets: Sequence[Budget]
) -> list[list[tuple[float, float]]]:
    """The best (multiple of the safe step, constant of varpi) for each cell and budget."""
    settings = [
        cell.words()
        | {"local": local[cell.n_rows], "budgets": list(budgets), "steps": list(STEPS), "l1": list(SHARED_L1)}
        for cell in cells
    ]
    chosen = []
    for found in replicate(run, "shared_pilot", shared_pilot, settings, SHARED_PILOTS):
        places = [_smallest(errors) for errors in np.sum(found, axis=0)]
        chosen.append([(STEPS[i], SHARED_L1[j]) for i, j in places])
    return chosen
