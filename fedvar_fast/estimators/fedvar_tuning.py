"""What the data choose for a federated fit: the rank, the start, the step and the sparse penalties."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators.options import Penalty, grid_of
from fedvar_fast.exceptions import ZeroStartWarning
from fedvar_fast.federation.inprocess import SharedOptions, fit_shared
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.rank import RankChoice, select_rank, vote
from fedvar_fast.solvers.fista import largest_penalty
from fedvar_fast.tuning import RollingOrigins, TuningPath, common_fits, penalty_grid, tune_lasso, warn_at_edge

__all__ = ["SharedTuning", "attributes_of_paths", "choose_rank", "local_start", "tune_given_shared", "tune_shared"]

#: Multiples of the safe step that ``step="cv"`` tries; from 2 on a round need not lower the loss.
_STEP_FACTORS = (0.25, 0.5, 1.0, 1.5, 1.9)


@dataclass(frozen=True)
class SharedTuning:
    """The step and the penalties that forecast best.

    Attributes
    ----------
    step_factor : float
        Multiple of the safe step.
    paths : dict of client to TuningPath
    """

    step_factor: float
    paths: dict[str, TuningPath]


def choose_rank(
    low_rank: Mapping[str, FloatArray], moments: Mapping[str, LaggedMoments]
) -> tuple[int, dict[str, int | None], dict[str, RankChoice]]:
    """The clients' votes by the ridge-ratio rule on their local low-rank parts, and the mode (paper, 9 and 10)."""
    choices = {}
    for name, matrix in low_rank.items():
        one = moments[name]
        singular_values = np.linalg.svd(matrix, compute_uv=False)
        choices[name] = select_rank(singular_values, one.n_rows, one.order, one.dim)
    votes = {name: choice.rank for name, choice in choices.items()}
    return vote(votes), votes, choices


def local_start(low_rank: FloatArray, client: str, rank: int) -> FloatArray | None:
    """The local low-rank part of the client with most rows as the start; None, with a warning, where it is zero."""
    if rank == 0 or np.any(low_rank):
        return low_rank
    warnings.warn(
        f"the local low-rank part of client {client!r}, which has most rows, is zero: Stage I starts from the spectral "
        "start instead",
        ZeroStartWarning,
        stacklevel=6,
    )
    return None


def tune_shared(
    origins: Mapping[str, RollingOrigins], options: SharedOptions, l1_penalty: Penalty, tune_step: bool
) -> SharedTuning:
    """Step and penalties by rolling forecasts of the whole method: Stage I anew at every fit, on rows before it.

    The step is that with the smallest sum over clients of their best errors.
    """
    fits = common_fits(origins)
    best: SharedTuning | None = None
    smallest = math.inf
    for factor in _STEP_FACTORS if tune_step else (options.step_factor,):
        shared = [fit_shared(moments, replace(options, step_factor=factor)).point for moments in fits]
        paths = {name: tune_given_shared(name, one, shared, l1_penalty) for name, one in origins.items()}
        total = sum(float(np.min(path.errors)) for path in paths.values())
        if total < smallest:
            best, smallest = SharedTuning(factor, paths), total
    if best is None:
        raise ArithmeticError("no rolling forecast has a finite error: the data hold numbers too large to square")
    return best


def tune_given_shared(client: str, origins: RollingOrigins, shared: list[FixedRank], l1_penalty: Penalty) -> TuningPath:
    """One client's penalty given the shared part at each of its fits (the last one serves the rest)."""
    n_fits = -(-origins.n_origins // origins.refit_every)
    offsets = [shared[min(i, len(shared) - 1)] for i in range(n_fits)]
    grid = grid_of("l1_penalty", l1_penalty, client)
    if grid is None:
        grid = penalty_grid(largest_penalty(origins.moments, offsets[0]))
    return tune_lasso(origins, grid, offsets)


def attributes_of_paths(paths: Mapping[str, TuningPath]) -> dict[str, Any]:
    """Fitted attributes of tuned penalties, with a warning where a choice sits on its grid's edge."""
    for name, path in paths.items():
        warn_at_edge(name, path)
    return {
        "l1_penalty_": {name: path.chosen["l1_penalty"] for name, path in paths.items()},
        "tuning_": {name: {**path.grids, "errors": path.errors} for name, path in paths.items()},
    }
