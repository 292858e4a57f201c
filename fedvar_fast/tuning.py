"""Tuning by rolling one-step forecasts on the training part: moments grow row by row, solutions start warm."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedvar_fast import kernels
from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import GridEdgeWarning, OptionError
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.solvers.admm import AdmmState, FactoredMoments, low_rank_plus_sparse
from fedvar_fast.solvers.fista import residual_terms

__all__ = [
    "RollingOrigins",
    "TuningPath",
    "check_grid",
    "common_fits",
    "penalty_grid",
    "tune_lasso",
    "tune_low_rank_sparse",
    "warn_at_edge",
]

#: Relative gap to which the solutions of a grid are computed: their forecasts differ far less than grid points do.
_TOLERANCE = 1e-4
_MAX_STEPS = 1000


@dataclass(frozen=True)
class RollingOrigins:
    """The rolling forecasts of one client: what is known before the first origin, and the rows after it.

    Attributes
    ----------
    moments : LaggedMoments
        Of the scaled rows before the first origin.
    rows : ndarray, shape (p + n_origins, d)
        The scaled rows to forecast, and the ``p`` before them.
    refit_every : int
        Origins between two fits.
    """

    moments: LaggedMoments
    rows: FloatArray
    refit_every: int = 1

    @property
    def n_origins(self) -> int:
        """Rows to forecast."""
        return len(self.rows) - self.moments.order

    def __iter__(self) -> Iterator[tuple[LaggedMoments, FloatArray, FloatArray]]:
        """Moments at each fit, and lags (m, pd) and responses (m, d) of the rows forecast with it.

        Rows that lack their response or a lag are not forecast.
        """
        order, moments = self.moments.order, self.moments
        for start in range(0, self.n_origins, self.refit_every):
            stop = min(start + self.refit_every, self.n_origins)
            lagged = [self.rows[order - lag + start : order - lag + stop] for lag in range(order + 1)]
            whole = ~np.isnan(np.hstack(lagged)).any(axis=1)
            yield moments, np.hstack(lagged[1:])[whole], lagged[0][whole]
            if stop < self.n_origins:
                moments = moments.update(lagged[0], n_jobs=1)


@dataclass(frozen=True)
class TuningPath:
    """Mean squared one-step errors (of the scaled data, per variable) over a grid.

    Attributes
    ----------
    grids : dict of str to ndarray
        The grid of each option, descending; the axes of `errors` in this order.
    errors : ndarray
    chosen : dict of str to float
    at_edge : tuple of str
        Options whose choice is the smallest of their grid, beyond which the error may be smaller still. (The
        largest is where the part is zero: there is nothing beyond it.)
    """

    grids: dict[str, FloatArray]
    errors: FloatArray
    chosen: dict[str, float]
    at_edge: tuple[str, ...]

    @classmethod
    def from_errors(cls, grids: dict[str, FloatArray], errors: FloatArray) -> TuningPath:
        """The smallest error; of equal ones the largest penalties."""
        index = np.unravel_index(int(np.argmin(errors)), errors.shape)
        chosen = {name: float(grid[i]) for (name, grid), i in zip(grids.items(), index, strict=True)}
        edge = [
            name for (name, grid), i in zip(grids.items(), index, strict=True) if i == len(grid) - 1 and len(grid) > 1
        ]
        return cls(grids, errors, chosen, tuple(edge))


def penalty_grid(largest: float, count: int = 8, ratio: float = 0.02) -> FloatArray:
    """`count` penalties from where the part becomes zero down to `ratio` of it, in equal steps of the logarithm."""
    if not largest > 0:
        return np.zeros(1)
    return np.asarray(np.geomspace(largest, ratio * largest, count))


def check_grid(name: str, values: object) -> FloatArray:
    """A grid given by the user, descending.

    Raises
    ------
    OptionError
        When it is empty, has negative or missing values, or is not sorted.
    """
    try:
        grid = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name}={values!r} is no list of numbers") from error
    if grid.ndim != 1 or len(grid) == 0:
        raise OptionError(f"{name} is an empty grid: give one or more penalties")
    if not (np.isfinite(grid).all() and (grid >= 0).all()):
        raise OptionError(f"{name} has negative or missing values: penalties are finite numbers, 0 or more")
    steps = np.diff(grid)
    if not ((steps > 0).all() or (steps < 0).all()):
        raise OptionError(f"{name} is not sorted: give the penalties in rising or falling order, each once")
    return grid if len(grid) == 1 or steps[0] < 0 else grid[::-1].copy()


def warn_at_edge(client: str, path: TuningPath) -> None:
    """One named warning when a choice sits on its grid's edge."""
    if path.at_edge:
        options = " and ".join(f"{name}={path.chosen[name]:.4g}" for name in path.at_edge)
        warnings.warn(
            f"client {client!r}: the chosen {options} is the smallest of its grid; a smaller one may forecast better",
            GridEdgeWarning,
            stacklevel=3,
        )


def tune_low_rank_sparse(
    origins: RollingOrigins,
    nuclear_grid: FloatArray,
    l1_grid: FloatArray,
    max_entry: float | None = None,
    tol: float = _TOLERANCE,
) -> TuningPath:
    """Errors over a grid of the two penalties of equation (4); infinite penalties leave a part out.

    Every grid point starts at its own solution of the fit before, at the first fit at that of its neighbour. Where
    ``l1 >= nuclear`` the sparse part is zero (``||D||_* <= ||D||_1``): these points share one solution; likewise the
    low-rank part where ``nuclear >= l1 sqrt(d pd)``.
    """
    if max_entry is not None:
        shared = {(i, j): (i, j) for i in range(len(nuclear_grid)) for j in range(len(l1_grid))}
    else:
        shared = _shared_points(nuclear_grid, l1_grid, origins.moments.yx.size)
    errors = np.zeros((len(nuclear_grid), len(l1_grid)))
    count = 0
    states: dict[tuple[int, int], AdmmState] = {}
    with kernels.one_blas_thread():
        for moments, x, y in origins:
            factored = FactoredMoments(moments)
            count += y.size
            losses: dict[tuple[int, int], float] = {}
            neighbour: AdmmState | None = None
            for point in dict.fromkeys(shared.values()):
                result = low_rank_plus_sparse(
                    factored, nuclear_grid[point[0]], l1_grid[point[1]], max_entry, tol=tol, max_iter=_MAX_STEPS,
                    start=states.get(point, neighbour), warn=False,
                )  # fmt: skip
                states[point] = neighbour = result.state
                losses[point] = float(np.sum((y - x @ (result.low_rank + result.sparse).T) ** 2))
            for point, representative in shared.items():
                errors[point] += losses[representative]
    return TuningPath.from_errors({"nuclear_penalty": nuclear_grid, "l1_penalty": l1_grid}, errors / max(count, 1))


def _shared_points(nuclear_grid: FloatArray, l1_grid: FloatArray, size: int) -> dict[tuple[int, int], tuple[int, int]]:
    """For every grid point the one whose solution is the same, in the order of a path from large to small."""
    shared = {}
    zero_sparse: dict[int, tuple[int, int]] = {}
    zero_low: dict[int, tuple[int, int]] = {}
    for i, nuclear in enumerate(nuclear_grid):
        for j, l1 in enumerate(l1_grid):
            if l1 >= nuclear and math.isfinite(l1):
                shared[i, j] = zero_sparse.setdefault(i, (i, j))
            elif nuclear >= l1 * math.sqrt(size) and math.isfinite(nuclear):
                shared[i, j] = zero_low.setdefault(j, (i, j))
            else:
                shared[i, j] = (i, j)
    return shared


def tune_lasso(
    origins: RollingOrigins, grid: FloatArray, offsets: list[FixedRank] | None = None, tol: float = _TOLERANCE
) -> TuningPath:
    """Errors over a grid of the l1 penalty, given the shared part at each fit (none: zero)."""
    errors = np.zeros(len(grid))
    count = 0
    starts: list[FloatArray] = []
    for number, (moments, x, y) in enumerate(origins):
        offset = offsets[number] if offsets is not None else None
        linear, energy = residual_terms(moments, offset)
        target = y if offset is None else y - x @ offset.dense().T
        count += y.size
        coef = np.zeros_like(linear)
        for i, penalty in enumerate(grid):
            start = starts[i] if number > 0 else coef
            coef, _, _ = kernels.coordinate_lasso(
                moments.xx, linear, energy, moments.n_rows, penalty, start, _MAX_STEPS, tol
            )
            if number > 0:
                starts[i] = coef
            else:
                starts.append(coef)
            errors[i] += np.sum((target - x @ coef.T) ** 2)
    return TuningPath.from_errors({"l1_penalty": grid}, errors / max(count, 1))


def common_fits(origins: Mapping[str, RollingOrigins]) -> list[dict[str, LaggedMoments]]:
    """The clients' moments at each fit, side by side; clients with fewer fits stay at their last."""
    by_client = {name: [moments for moments, _, _ in one] for name, one in origins.items()}
    longest = max(len(fits) for fits in by_client.values())
    return [{name: fits[min(i, len(fits) - 1)] for name, fits in by_client.items()} for i in range(longest)]
