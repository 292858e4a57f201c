"""Low rank plus sparse for one series: paper, equation (4), by two-block ADMM with a duality gap."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fedvar_fast import kernels
from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import ConvergenceWarning, OptionError
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.solvers.fista import residual_terms
from fedvar_fast.solvers.least_squares import least_squares

__all__ = ["AdmmState", "FactoredMoments", "LowRankSparseResult", "largest_nuclear_penalty", "low_rank_plus_sparse"]

#: Steps between two looks at the gap.
_STEPS = 10
#: Over-relaxation; 1.5 to 1.8 is what practice recommends (Boyd et al. 2011, section 3.4.3).
_RELAXATION = 1.6
#: Points that Anderson mixing remembers, and by how much a residual may grow before it is taken back.
_MIXING_MEMORY = 6
_MIXING_GROWTH = 2.0
#: Steps between two exact solutions for the sparse part given the low-rank one.
_POLISH_EVERY = 100
#: Sweeps that such a solution may take.
_POLISH_SWEEPS = 200
#: After so many steps the penalty parameter stays: mixing needs one map.
_TUNING_STEPS = 400
#: The penalty parameter changes when one scaled residual exceeds the other by this factor.
_IMBALANCE = 5.0


@dataclass(frozen=True)
class FactoredMoments:
    """Moments with the one factorisation that serves every penalty.

    Attributes
    ----------
    moments : LaggedMoments
    """

    moments: LaggedMoments

    @cached_property
    def eigen(self) -> tuple[FloatArray, FloatArray]:
        """Eigenvalues (pd,) and vectors (pd, pd) of ``(2/T) S``."""
        values, vectors = np.linalg.eigh(self.moments.xx * (2.0 / self.moments.n_rows))
        return np.maximum(values, 0.0), vectors

    @cached_property
    def linear(self) -> FloatArray:
        """``(2/T) C`` (d, pd)."""
        return self.moments.yx * (2.0 / self.moments.n_rows)

    @cached_property
    def quadratic(self) -> FloatArray:
        """``(2/T) S`` (pd, pd)."""
        return self.moments.xx * (2.0 / self.moments.n_rows)

    @cached_property
    def energy(self) -> float:
        """``tr Q / T``, the loss at zero."""
        return float(np.trace(self.moments.yy)) / self.moments.n_rows

    def inverse(self, coupling: float) -> FloatArray:
        """``((2/T) S + c I)^-1`` (pd, pd)."""
        values, vectors = self.eigen
        return (vectors / (values + coupling)) @ vectors.T


@dataclass(frozen=True)
class AdmmState:
    """Where ADMM stands, for a warm start: copies ``Z`` and multipliers ``rho U``, in units that no rho changes.

    Attributes
    ----------
    copies, multipliers : ndarray, shape (3, d, pd)
        Of the nuclear, the l1 and the box part.
    rho : float
        Penalty parameter.
    """

    copies: FloatArray
    multipliers: FloatArray
    rho: float

    @classmethod
    def zero(cls, shape: tuple[int, int], rho: float) -> AdmmState:
        """A cold start."""
        return cls(np.zeros((3, *shape)), np.zeros((3, *shape)), rho)


@dataclass(frozen=True)
class LowRankSparseResult:
    """A solution with its optimality measure.

    Attributes
    ----------
    low_rank, sparse : ndarray, shape (d, pd)
        ``L`` (within its box exactly) and ``D``.
    objective : float
        At these.
    gap : float
        Duality gap at these, relative to the loss at zero.
    n_iter : int
    state : AdmmState
        For the next problem.
    """

    low_rank: FloatArray
    sparse: FloatArray
    objective: float
    gap: float
    n_iter: int
    state: AdmmState = field(repr=False)


@dataclass(frozen=True)
class _Problem:
    """Penalties, and which parts there are."""

    nuclear_penalty: float
    l1_penalty: float
    max_entry: float

    @property
    def has_low(self) -> bool:
        return math.isfinite(self.nuclear_penalty) and self.max_entry > 0

    @property
    def has_sparse(self) -> bool:
        return math.isfinite(self.l1_penalty)

    @property
    def has_box(self) -> bool:
        return self.has_low and math.isfinite(self.max_entry)

    def coupling(self, rho: float) -> tuple[float, float]:
        """``c`` and the share of ``M - R`` that goes to ``L``; see the kernel."""
        copies = 2.0 if self.has_box else 1.0
        if not self.has_sparse:
            return copies * rho, 1.0
        if not self.has_low:
            return rho, 0.0
        return rho * copies / (1.0 + copies), 1.0 / (1.0 + copies)


def largest_nuclear_penalty(moments: LaggedMoments) -> float:
    """``(2/T) ||C||_op``: at this nuclear penalty and above, without a sparse part, the solution is zero."""
    return 2.0 * float(np.linalg.norm(moments.yx, 2)) / moments.n_rows


def low_rank_plus_sparse(
    problem: LaggedMoments | FactoredMoments,
    nuclear_penalty: float,
    l1_penalty: float,
    max_entry: float | None = None,
    *,
    tol: float = 1e-8,
    max_iter: int = 20_000,
    start: AdmmState | None = None,
    warn: bool = True,
) -> LowRankSparseResult:
    """``min (1/T) sum ||y_t - (L+D) x_t||^2 + nuclear ||L||_* + l1 ||D||_1  s.t. ||L||_inf <= max_entry``.

    Two-block ADMM: ``(L, D)`` jointly with the quadratic, their copies apart, so that it meets the optimum also
    with an active box. The dual point behind the gap is the gradient ``G`` at ``L + D`` scaled by
    ``a = min(1, l1/||G||_inf)``; with ``W`` the nuclear part's multiplier (``||W||_op <= nuclear``) the dual value
    is ``(2 a (E - <M, C>) - a^2 ||residual||^2)/T - max_entry a ||G + W||_1``; without a box
    ``a <= nuclear / ||G||_op`` as well, and no last term.

    Parameters
    ----------
    problem : LaggedMoments or FactoredMoments
        The latter keeps its factorisation from one call to the next.
    nuclear_penalty, l1_penalty : float
        At least 0; infinite: that part is zero. Where one is 0 (the nuclear one without a box), that part is the
        least-squares solution of minimum norm.
    max_entry : float, optional
        ``zeta``; no bound by default.
    tol : float
        Relative duality gap.
    max_iter : int
    start : AdmmState, optional
        Of a neighbouring problem.
    warn : bool
        Whether to warn when `max_iter` was not enough.

    Returns
    -------
    LowRankSparseResult

    Raises
    ------
    OptionError
        A negative penalty or bound.

    Warns
    -----
    ConvergenceWarning
    """
    factored = problem if isinstance(problem, FactoredMoments) else FactoredMoments(problem)
    options = _Problem(
        _penalty("nuclear_penalty", nuclear_penalty),
        _penalty("l1_penalty", l1_penalty),
        math.inf if max_entry is None else _penalty("max_entry", max_entry),
    )
    if not tol >= 0:
        raise OptionError(f"tol={tol!r} is not a tolerance: give a number, 0 or more")
    shape = factored.linear.shape
    if start is not None and start.copies.shape != (3, *shape):
        raise OptionError(f"start is the state of a problem of shape {start.copies.shape[1:]}, this one has {shape}")
    if options.l1_penalty == 0 or (options.nuclear_penalty == 0 and not options.has_box):
        return _unpenalised(factored, options)
    if not (options.has_low or options.has_sparse) or factored.energy == 0.0:
        zero = np.zeros(shape)
        return LowRankSparseResult(zero, zero, factored.energy, 0.0, 0, AdmmState.zero(shape, 1.0))
    with kernels.one_blas_thread():
        result = _solve(factored, options, start, tol, max_iter)
    if warn and result.gap > tol:
        warnings.warn(
            f"ADMM stopped at {result.n_iter} steps with a relative duality gap of {result.gap:.2g}, above {tol:.2g}: "
            "allow more steps or a larger tolerance",
            ConvergenceWarning,
            stacklevel=2,
        )
    return result


def _unpenalised(factored: FactoredMoments, options: _Problem) -> LowRankSparseResult:
    """A part without a penalty explains everything by itself: least squares, whatever the other part costs."""
    coef = least_squares(factored.moments)
    zero = np.zeros_like(coef)
    low, sparse = (zero, coef) if options.l1_penalty == 0 else (coef, zero)
    return LowRankSparseResult(low, sparse, factored.moments.loss(coef), 0.0, 0, AdmmState.zero(coef.shape, 1.0))


def _penalty(name: str, value: float) -> float:
    if not value >= 0:
        raise OptionError(f"{name}={value!r} is negative: give a number, 0 or more")
    return float(value)


def _solve(
    factored: FactoredMoments, options: _Problem, start: AdmmState | None, tol: float, max_iter: int
) -> LowRankSparseResult:
    state = start if start is not None else AdmmState.zero(factored.linear.shape, _first_rho(factored))
    copies, rho = state.copies.copy(), state.rho
    scaled = state.multipliers / rho
    inverse, constant = _joint_step(factored, options, rho)
    residuals = np.zeros(4)
    mixing = _Anderson()
    best: LowRankSparseResult | None = None
    done = 0
    while best is None or (best.gap > tol and done < max_iter):
        before = np.stack([copies, scaled])
        coupling, share = options.coupling(rho)
        kernels.admm(
            inverse, constant, coupling, share, options.nuclear_penalty / rho, options.l1_penalty / rho,
            options.max_entry, options.has_low, options.has_sparse, options.has_box, _STEPS, _RELAXATION,
            copies, scaled, residuals,
        )  # fmt: skip
        done += _STEPS
        found = _certified(factored, options, copies, scaled, rho, done)
        if best is None or found.gap < best.gap:
            best = found
        if best.gap <= tol:
            break
        if options.has_sparse and done % _POLISH_EVERY == 0:
            _polish(factored, options, copies, scaled, rho, 0.1 * tol)
            mixing = _Anderson()
            found = _certified(factored, options, copies, scaled, rho, done)
            best = found if found.gap < best.gap else best
            continue
        factor = _rebalance(residuals)
        if factor != 1.0 and done <= _TUNING_STEPS:
            rho *= factor
            scaled /= factor
            inverse, constant = _joint_step(factored, options, rho)
            mixing = _Anderson()
        else:
            copies, scaled = mixing.propose(before, np.stack([copies, scaled]))
    return replace(best, n_iter=done, state=AdmmState(copies, scaled * rho, rho))


class _Anderson:
    """Anderson mixing of the fixed-point map v -> g(v) (Walker and Ni 2011), for the slow modes of ADMM.

    Near-flat directions (a price index twice in one panel, multipliers that are nearly not unique) make plain
    ADMM crawl for thousands of steps along straight lines, which is what mixing sees through. A proposal whose
    residual grows is taken back.
    """

    def __init__(self) -> None:
        self.images: list[FloatArray] = []
        self.residuals: list[FloatArray] = []

    def propose(self, before: FloatArray, image: FloatArray) -> FloatArray:
        """The next point from a point and its image."""
        residual = (image - before).ravel()
        if self.residuals and np.linalg.norm(residual) > _MIXING_GROWTH * np.linalg.norm(self.residuals[-1]):
            fallback = self.images[-1]
            self.images, self.residuals = [], []
            return fallback
        self.images.append(image)
        self.residuals.append(residual)
        del self.images[: -_MIXING_MEMORY - 1], self.residuals[: -_MIXING_MEMORY - 1]
        if len(self.images) < 2:
            return image
        differences = np.diff(np.array(self.residuals), axis=0).T
        gamma = np.linalg.lstsq(differences, residual, rcond=1e-10)[0]
        moves = np.diff(np.array(self.images), axis=0)
        return image - np.tensordot(gamma, moves, axes=1)


def _polish(
    factored: FactoredMoments, options: _Problem, copies: FloatArray, scaled: FloatArray, rho: float, tol: float
) -> None:
    """Solve for the sparse part given the low-rank one, in place.

    Between nearly equal columns ADMM's multipliers crawl; the active set of coordinate descent does not.
    """
    moments = factored.moments
    linear, energy = residual_terms(moments, copies[0] if options.has_low else None)
    polished, _, _ = kernels.coordinate_lasso(
        moments.xx, linear, energy, moments.n_rows, options.l1_penalty, copies[1], _POLISH_SWEEPS, tol
    )
    gradient = (polished @ moments.xx - linear) * (2.0 / moments.n_rows)
    copies[1] = polished
    scaled[1] = np.clip(-gradient, -options.l1_penalty, options.l1_penalty) / rho


def _first_rho(factored: FactoredMoments) -> float:
    """The geometric mean of the largest and the median curvature: between what stiff and soft directions want."""
    values = factored.eigen[0]
    largest = float(values[-1])
    return math.sqrt(largest * max(float(np.median(values)), 1e-3 * largest))


def _joint_step(factored: FactoredMoments, options: _Problem, rho: float) -> tuple[FloatArray, FloatArray]:
    inverse = factored.inverse(options.coupling(rho)[0])
    return inverse, factored.linear @ inverse


def _rebalance(residuals: FloatArray) -> float:
    """Factor for rho from the scaled residuals (Wohlberg 2017); 1 where they balance."""
    primal = residuals[0] / max(residuals[1], 1e-300)
    dual = residuals[2] / max(residuals[3], 1e-300)
    if primal == 0.0 or dual == 0.0:
        return 1.0
    ratio = math.sqrt(primal / dual)
    if 1.0 / _IMBALANCE < ratio**2 < _IMBALANCE:
        return 1.0
    return min(max(ratio, 0.1), 10.0)


def _certified(
    factored: FactoredMoments, options: _Problem, copies: FloatArray, scaled: FloatArray, rho: float, n_iter: int
) -> LowRankSparseResult:
    """Feasible primal point, its objective, and its gap."""
    zero = np.zeros(factored.linear.shape)
    low = copies[0] if options.has_low else zero
    sparse = copies[1].copy() if options.has_sparse else zero
    if options.has_box:
        # Shrinking keeps the rank, clipping would not; at the optimum both do nothing.
        largest = float(np.max(np.abs(low), initial=0.0))
        low = low * min(1.0, options.max_entry / largest) if largest > 0 else low.copy()
    elif options.has_low:
        low = low.copy()
    total = low + sparse
    product = total @ factored.quadratic
    gradient = product - factored.linear
    inner = float(np.vdot(total, factored.linear))
    # In these units (2/T): <M, C>/T = inner/2 and <M S, M>/T = <product, M>/2.
    residual = max(factored.energy - inner + 0.5 * float(np.vdot(product, total)), 0.0)
    nuclear = float(np.sum(np.linalg.svd(low, compute_uv=False))) if options.has_low else 0.0
    penalty = (options.nuclear_penalty * nuclear if options.has_low else 0.0) + (
        options.l1_penalty * float(np.sum(np.abs(sparse))) if options.has_sparse else 0.0
    )
    objective = residual + penalty
    dual = _dual_value(factored, options, gradient, scaled[0] * rho, inner, residual)
    gap = max(objective - dual, 0.0) / factored.energy
    return LowRankSparseResult(low, sparse, objective, gap, n_iter, AdmmState(copies, scaled, rho))


def _dual_value(
    factored: FactoredMoments,
    options: _Problem,
    gradient: FloatArray,
    multiplier: FloatArray,
    inner: float,
    residual: float,
) -> float:
    scale = 1.0
    if options.has_sparse:
        largest = float(np.max(np.abs(gradient)))
        scale = min(scale, options.l1_penalty / largest) if largest > 0 else scale
    if options.has_low and not options.has_box:
        largest = float(np.linalg.norm(gradient, 2))
        scale = min(scale, options.nuclear_penalty / largest) if largest > 0 else scale
    value = scale * (2.0 * factored.energy - inner) - scale**2 * residual
    if options.has_box:
        value -= options.max_entry * scale * float(np.sum(np.abs(gradient + multiplier)))
    return value
