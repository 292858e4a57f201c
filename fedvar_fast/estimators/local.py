"""What each client can do alone: least squares, own lags, l1, nuclear norm, and both (paper, equation 4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.estimators.options import Penalty, check_penalty, grid_of, is_given, penalty_of, positive, whole
from fedvar_fast.estimators.state import ClientState
from fedvar_fast.exceptions import ConvergenceWarning, OptionError
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.panel import Panel
from fedvar_fast.solvers.admm import AdmmState, LowRankSparseResult, low_rank_plus_sparse
from fedvar_fast.solvers.fista import largest_penalty, lasso_on_moments
from fedvar_fast.solvers.least_squares import least_squares, own_lags
from fedvar_fast.tuning import (
    RollingOrigins,
    TuningPath,
    penalty_grid,
    tune_lasso,
    tune_low_rank_sparse,
    warn_at_edge,
)

__all__ = ["AutoregressionVAR", "LassoVAR", "LeastSquaresVAR", "LocalVAR", "NuclearVAR"]

#: Bounds on the largest entry that ``max_entry="cv"`` tries, as parts of the unbounded solution's.
_BOUNDS = (1.0, 0.7, 0.5, 0.35, 0.25)


class _ClosedForm(PanelVAR):
    """An estimator of each client by itself, without a tuning parameter."""

    _saved_attributes: ClassVar[tuple[str, ...]] = ("gap_",)

    def __init__(
        self,
        order: int = 1,
        *,
        center: bool = True,
        scale: bool = True,
        clip: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.order = order
        self.center = center
        self.scale = scale
        self.clip = clip
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _solve(self, moments: LaggedMoments) -> FloatArray:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is fitted")

    def _estimate(
        self, states: dict[str, ClientState], tuned: dict[str, Any], continuing: bool = False
    ) -> dict[str, Any]:
        coef = {name: self._solve(state.standardized()) for name, state in states.items()}
        return {"coef_": coef, "gap_": dict.fromkeys(coef, 0.0)}


class LeastSquaresVAR(_ClosedForm):
    """Least squares for each client by itself, ``A = C S^+``: of minimum norm where ``T < pd``.

    Parameters
    ----------
    order : int
    center, scale, clip, n_jobs, random_state, verbose
        As in `FedVAR`.

    Attributes
    ----------
    coef_ : dict of client to ndarray, shape (d, pd)
        Of the scaled data.
    """

    def _solve(self, moments: LaggedMoments) -> FloatArray:
        return least_squares(moments)


class AutoregressionVAR(_ClosedForm):
    """Each variable of each client on its own ``p`` lags only, by least squares: the AR(p) baseline.

    Parameters and attributes are those of `LeastSquaresVAR`; ``coef_`` is zero off the own lags.
    """

    def _solve(self, moments: LaggedMoments) -> FloatArray:
        return own_lags(moments)


class LocalVAR(PanelVAR):
    """Low rank plus sparse for each client by itself (paper, equation 4).

    ``min (1/T) sum ||y_t - (L+D) x_t||^2 + nuclear_penalty ||L||_* + l1_penalty ||D||_1  s.t. ||L||_inf <= max_entry``,
    by two-block ADMM to a duality gap.

    Parameters
    ----------
    order : int
    nuclear_penalty, l1_penalty : "cv", float, mapping of client to float, or sequence of floats
        ``"cv"`` chooses from a grid below the zero thresholds by rolling one-step forecasts of the last
        `n_origins` rows; a sequence is taken as that grid.
    max_entry : None, float, mapping of client to float, or "cv"
        Bound on the entries of ``L``; none by default.
    n_origins, refit_every : int
        Of the rolling forecasts; the moments grow with every origin, the solutions follow every `refit_every`.
    tol : float
        Relative duality gap.
    max_iter : int
    center, scale, clip, n_jobs, random_state, verbose
        As in `FedVAR`.

    Attributes
    ----------
    low_rank_, sparse_, coef_ : dict of client to ndarray, shape (d, pd)
        ``L``, ``D`` and their sum, of the scaled data.
    gap_ : dict of client to float
        Duality gap relative to the loss at zero.
    nuclear_penalty_, l1_penalty_, max_entry_ : dict of client to float
    tuning_ : dict of client to dict
        The grids and the mean squared rolling errors over them; empty where nothing was tuned.
    """

    _saved_attributes: ClassVar[tuple[str, ...]] = (
        "low_rank_", "sparse_", "gap_", "nuclear_penalty_", "l1_penalty_", "max_entry_", "tuning_",
    )  # fmt: skip

    #: Which parts there are; the special cases leave one out.
    _has_low_rank: ClassVar[bool] = True
    _has_sparse: ClassVar[bool] = True

    nuclear_penalty: Penalty
    l1_penalty: Penalty
    max_entry: Penalty | None

    def __init__(
        self,
        order: int = 1,
        nuclear_penalty: Penalty = "cv",
        l1_penalty: Penalty = "cv",
        max_entry: Penalty | None = None,
        *,
        n_origins: int = 20,
        refit_every: int = 5,
        tol: float = 1e-6,
        max_iter: int = 20_000,
        center: bool = True,
        scale: bool = True,
        clip: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.order = order
        self.nuclear_penalty = nuclear_penalty
        self.l1_penalty = l1_penalty
        self.max_entry = max_entry
        self.n_origins = n_origins
        self.refit_every = refit_every
        self.tol = tol
        self.max_iter = max_iter
        self.center = center
        self.scale = scale
        self.clip = clip
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _check_options(self) -> None:
        super()._check_options()
        if self._has_low_rank:
            check_penalty("nuclear_penalty", self.nuclear_penalty, ("cv",))
        if self._has_sparse:
            check_penalty("l1_penalty", self.l1_penalty, ("cv",))
        if self.max_entry is not None:
            if isinstance(self.max_entry, Sequence | np.ndarray) and not isinstance(self.max_entry, str):
                raise OptionError("max_entry is a list: give None, a number, numbers by client, or 'cv'")
            check_penalty("max_entry", self.max_entry, ("cv",))
        whole("n_origins", self.n_origins, 1)
        whole("refit_every", self.refit_every, 1)
        whole("max_iter", self.max_iter, 1)
        positive("tol", self.tol)

    # -- tuning ----------------------------------------------------------------------------------------------

    def _tune(self, data: Panel, states: dict[str, ClientState]) -> dict[str, Any]:
        tuned: dict[str, Any] = {name: {} for name in ("nuclear_penalty_", "l1_penalty_", "max_entry_", "tuning_")}
        for name, state in states.items():
            origins = None
            if self._is_tuned():
                origins = self._origins(data[name], state, int(self.n_origins), int(self.refit_every))
            nuclear, l1, bound, path = self._tune_client(name, origins)
            tuned["nuclear_penalty_"][name], tuned["l1_penalty_"][name] = nuclear, l1
            tuned["max_entry_"][name] = bound
            tuned["tuning_"][name] = {} if path is None else {**path.grids, "errors": path.errors}
        return tuned

    def _is_tuned(self) -> bool:
        options: list[Any] = [self.max_entry]
        options += [self.nuclear_penalty] if self._has_low_rank else []
        options += [self.l1_penalty] if self._has_sparse else []
        return any(option is not None and not is_given(option) for option in options)

    def _tune_client(
        self, client: str, origins: RollingOrigins | None
    ) -> tuple[float, float, float, TuningPath | None]:
        bound = self.max_entry
        fixed = math.inf
        if bound is not None and is_given(bound):
            fixed = penalty_of("max_entry", bound, client)
        if origins is None:
            return math.inf, math.inf, fixed, None
        path = self._tune_path(client, origins, None if math.isinf(fixed) else fixed)
        warn_at_edge(client, path)
        nuclear, l1 = path.chosen.get("nuclear_penalty", math.inf), path.chosen.get("l1_penalty", math.inf)
        if isinstance(bound, str):
            fixed = _tuned_bound(origins, nuclear, l1, float(np.min(path.errors)))
        return nuclear, l1, fixed, path

    def _tune_path(self, client: str, origins: RollingOrigins, bound: float | None) -> TuningPath:
        return tune_low_rank_sparse(origins, *self._grids(client, origins), bound)

    def _grids(self, client: str, origins: RollingOrigins) -> tuple[FloatArray, FloatArray]:
        moments = origins.moments
        nuclear = l1 = np.array([math.inf])
        if self._has_low_rank:
            largest = 2.0 * float(np.linalg.norm(moments.yx, 2)) / moments.n_rows
            nuclear = _grid("nuclear_penalty", self.nuclear_penalty, client, largest)
        if self._has_sparse:
            l1 = _grid("l1_penalty", self.l1_penalty, client, largest_penalty(moments))
        return nuclear, l1

    # -- fitting ---------------------------------------------------------------------------------------------

    def _estimate(
        self, states: dict[str, ClientState], tuned: dict[str, Any], continuing: bool = False
    ) -> dict[str, Any]:
        results = {}
        warm: dict[str, AdmmState] = getattr(self, "_warm", {}) if continuing else {}
        tuned = tuned | self._given_options(states)
        for name, state in states.items():
            bound = tuned["max_entry_"][name]
            results[name] = self._solve(
                name, state.standardized(), tuned["nuclear_penalty_"][name], tuned["l1_penalty_"][name],
                None if math.isinf(bound) else bound, warm.get(name),
            )  # fmt: skip
        return tuned | {
            "_warm": {name: result.state for name, result in results.items()},
            "low_rank_": {name: result.low_rank for name, result in results.items()},
            "sparse_": {name: result.sparse for name, result in results.items()},
            "coef_": {name: result.low_rank + result.sparse for name, result in results.items()},
            "gap_": {name: result.gap for name, result in results.items()},
        }

    def _given_options(self, states: dict[str, ClientState]) -> dict[str, Any]:
        """Penalties and bounds that the options say outright, whatever an earlier fit chose."""
        options: dict[str, Any] = {"max_entry": self.max_entry}
        options |= {"nuclear_penalty": self.nuclear_penalty} if self._has_low_rank else {}
        options |= {"l1_penalty": self.l1_penalty} if self._has_sparse else {}
        return {
            f"{option}_": {name: penalty_of(option, value, name) for name in states}
            for option, value in options.items()
            if value is not None and is_given(value)
        }

    def _solve(
        self, client: str, moments: LaggedMoments, nuclear: float, l1: float, bound: float | None,
        start: AdmmState | None,
    ) -> LowRankSparseResult:  # fmt: skip
        result = low_rank_plus_sparse(
            moments, nuclear, l1, bound, tol=self.tol, max_iter=int(self.max_iter), start=start, warn=False
        )
        if result.gap > self.tol:
            warnings.warn(
                f"client {client!r}: ADMM stopped at {result.n_iter} steps with a relative duality gap of "
                f"{result.gap:.2g}, above {self.tol:.2g}: allow more steps or a larger tolerance",
                ConvergenceWarning,
                stacklevel=5,
            )
        return result

    def _tuned(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("nuclear_penalty_", "l1_penalty_", "max_entry_", "tuning_")}

    def _chosen_options(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        if self._has_low_rank and not is_given(self.nuclear_penalty):
            chosen["nuclear_penalty"] = dict(self.nuclear_penalty_)
        if self._has_sparse and not is_given(self.l1_penalty):
            chosen["l1_penalty"] = dict(self.l1_penalty_)
        if self.max_entry is not None and not is_given(self.max_entry):
            chosen["max_entry"] = dict(self.max_entry_)
        return chosen


class NuclearVAR(LocalVAR):
    """Low rank for each client by itself: ``min (1/T) sum ||y_t - A x_t||^2 + nuclear_penalty ||A||_*``.

    Options and attributes are those of `LocalVAR` without a sparse part.
    """

    _has_sparse: ClassVar[bool] = False
    max_entry: Penalty | None = None

    def __init__(
        self,
        order: int = 1,
        nuclear_penalty: Penalty = "cv",
        *,
        n_origins: int = 20,
        refit_every: int = 5,
        tol: float = 1e-6,
        max_iter: int = 20_000,
        center: bool = True,
        scale: bool = True,
        clip: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.order = order
        self.nuclear_penalty = nuclear_penalty
        self.n_origins = n_origins
        self.refit_every = refit_every
        self.tol = tol
        self.max_iter = max_iter
        self.center = center
        self.scale = scale
        self.clip = clip
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


class LassoVAR(LocalVAR):
    """Sparse for each client by itself: ``min (1/T) sum ||y_t - A x_t||^2 + l1_penalty ||A||_1``.

    Options and attributes are those of `LocalVAR` without a low-rank part. Solved by coordinate descent on the
    Gram matrix; in scikit-learn's scaling ``alpha = l1_penalty / 2``.
    """

    _has_low_rank: ClassVar[bool] = False
    max_entry: Penalty | None = None

    def __init__(
        self,
        order: int = 1,
        l1_penalty: Penalty = "cv",
        *,
        n_origins: int = 20,
        refit_every: int = 5,
        tol: float = 1e-6,
        max_iter: int = 20_000,
        center: bool = True,
        scale: bool = True,
        clip: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.order = order
        self.l1_penalty = l1_penalty
        self.n_origins = n_origins
        self.refit_every = refit_every
        self.tol = tol
        self.max_iter = max_iter
        self.center = center
        self.scale = scale
        self.clip = clip
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _tune_path(self, client: str, origins: RollingOrigins, bound: float | None) -> TuningPath:
        return tune_lasso(origins, self._grids(client, origins)[1])

    def _solve(
        self, client: str, moments: LaggedMoments, nuclear: float, l1: float, bound: float | None,
        start: AdmmState | None,
    ) -> LowRankSparseResult:  # fmt: skip
        before = None if start is None else start.copies[1]
        found = lasso_on_moments(
            moments, l1, tol=self.tol, max_iter=int(self.max_iter), start=before, n_jobs=self.n_jobs
        )
        state = AdmmState.zero(moments.yx.shape, 1.0)
        state.copies[1] = found.coef
        objective = moments.loss(found.coef) + l1 * float(np.sum(np.abs(found.coef)))
        zero = np.zeros_like(found.coef)
        return LowRankSparseResult(zero, found.coef, objective, found.gap, int(np.max(found.n_iter)), state)


def _grid(name: str, value: Penalty, client: str, largest: float) -> FloatArray:
    given = grid_of(name, value, client)
    return penalty_grid(largest) if given is None else given


def _tuned_bound(origins: RollingOrigins, nuclear: float, l1: float, unbounded: float) -> float:
    """The bound, if any, with which the rolling errors fall below those without one."""
    first = low_rank_plus_sparse(origins.moments, nuclear, l1, warn=False, tol=1e-4)
    largest = float(np.max(np.abs(first.low_rank), initial=0.0))
    best, chosen = unbounded, math.inf
    if largest == 0:
        return chosen
    for part in _BOUNDS:
        path = tune_low_rank_sparse(origins, np.array([nuclear]), np.array([l1]), part * largest)
        if float(path.errors[0, 0]) < best:
            best, chosen = float(path.errors[0, 0]), part * largest
    return chosen
