"""Stage II: d lassos on one Gram matrix."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from fedvar_fast import kernels
from fedvar_fast._typing import FloatArray, IntArray
from fedvar_fast.exceptions import ConvergenceWarning, OptionError
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.solvers.least_squares import least_squares

__all__ = ["LassoResult", "largest_penalty", "lasso_on_moments", "residual_terms"]


@dataclass(frozen=True)
class LassoResult:
    """A solution with its optimality measure.

    Attributes
    ----------
    coef : ndarray, shape (d, pd)
    gap : float
        Sum of the rows' duality gaps at `coef`, relative to the loss at zero.
    row_gaps : ndarray, shape (d,)
        Duality gaps by row, in units of the loss.
    n_iter : ndarray, shape (d,)
        Steps taken by row.
    """

    coef: FloatArray
    gap: float
    row_gaps: FloatArray
    n_iter: IntArray


def largest_penalty(moments: LaggedMoments, offset: FloatArray | FixedRank | None = None) -> float:
    """``||(2/T)(A0 S - C)||_inf``: at this penalty and above the solution is zero."""
    linear, _ = residual_terms(moments, offset)
    return float(np.max(np.abs(linear), initial=0.0)) * 2.0 / moments.n_rows


def lasso_on_moments(
    moments: LaggedMoments,
    l1_penalty: float,
    offset: FloatArray | FixedRank | None = None,
    tol: float | None = 1e-6,
    max_iter: int = 10_000,
    solver: str = "auto",
    *,
    start: FloatArray | None = None,
    step: float | None = None,
    n_jobs: int | None = None,
) -> LassoResult:
    """``min_D (1/T) sum ||y_t - (A0 + D) x_t||^2 + l1_penalty ||D||_1`` from moments (paper, equation 7).

    To a tolerance by coordinate descent on the Gram matrix, or by FISTA with step ``T / (2 ||S||_op)`` (Beck and
    Teboulle 2009) that restarts its momentum when that points uphill; every row stops on its own duality gap.

    Parameters
    ----------
    moments : LaggedMoments
    l1_penalty : float
        At least 0, in units of the gradient. In scikit-learn's scaling ``alpha = l1_penalty / 2``. At 0 (with a
        tolerance) the minimum-norm least-squares solution is returned, in closed form.
    offset : ndarray, shape (d, pd), optional
        ``A0``; zero by default. In thin factors (`FixedRank`) it costs less.
    tol : float or None
        Stop when the duality gap of every row is at most `tol` times its loss at ``D = 0``. None: take exactly
        `max_iter` plain FISTA steps.
    max_iter : int
        Steps, or sweeps of coordinate descent, at the most.
    solver : {"auto", "coordinate", "fista"}
        ``"auto"``: coordinate descent to a tolerance, FISTA for a number of steps.
    start : ndarray, shape (d, pd), optional
        Zero by default.
    step : float, optional
        ``T / (2 ||S||_op)`` by default.
    n_jobs : int, optional
        Threads over rows; the answer does not depend on them.

    Returns
    -------
    LassoResult

    Raises
    ------
    OptionError
        A negative penalty, tolerance or number of steps, an unknown solver, a start of the wrong shape.

    Warns
    -----
    ConvergenceWarning
        When the tolerance was not reached in `max_iter` steps.
    """
    _check(moments, l1_penalty, tol, max_iter, solver)
    linear, energy = residual_terms(moments, offset)
    first = np.zeros_like(linear) if start is None else np.asarray(start, dtype=np.float64)
    if first.shape != linear.shape:
        raise OptionError(f"start has shape {first.shape}, the coefficients have {linear.shape}")
    if l1_penalty == 0 and tol is not None:
        return _least_squares(moments, linear, energy)
    threads = kernels.resolve_n_jobs(n_jobs)
    with kernels.one_blas_thread():
        if solver == "coordinate" or (solver == "auto" and tol is not None):
            found = kernels.coordinate_lasso(
                moments.xx, linear, energy, moments.n_rows, l1_penalty, first, max_iter, tol or 0.0, threads
            )
        else:
            found = kernels.fista_lasso(
                moments.xx, linear, energy, moments.n_rows, l1_penalty, _safe_step(moments) if step is None else step,
                first, max_iter, -1.0 if tol is None else tol, threads,
            )  # fmt: skip
    coef, row_gaps, n_iter = found
    at_zero = float(np.sum(energy)) / moments.n_rows
    gap = float(np.sum(row_gaps)) / at_zero if at_zero > 0 else 0.0
    if tol is not None and np.any(row_gaps > tol * energy / moments.n_rows):
        largest = float(np.max(row_gaps / np.maximum(energy / moments.n_rows, np.finfo(np.float64).tiny)))
        warnings.warn(
            f"the lasso solver stopped at {max_iter} steps with a relative duality gap of {largest:.2g} in a row, "
            f"above {tol:.2g}: "
            "allow more steps or a larger tolerance",
            ConvergenceWarning,
            stacklevel=2,
        )
    return LassoResult(coef, gap, row_gaps, n_iter)


def _safe_step(moments: LaggedMoments) -> float:
    """``T / (2 ||S||_op)``; 0 where there is nothing to move for."""
    norm = moments.operator_norm()
    return moments.n_rows / (2.0 * norm) if norm > 0 else 0.0


def _least_squares(moments: LaggedMoments, linear: FloatArray, energy: FloatArray) -> LassoResult:
    """Without a penalty the dual bound says nothing, but the minimum-norm optimum has a closed form."""
    coef = least_squares(replace(moments, yx=linear))
    zeros = np.zeros(len(coef))
    return LassoResult(coef, 0.0, zeros, np.zeros(len(coef), dtype=np.intc))


def _check(moments: LaggedMoments, l1_penalty: float, tol: float | None, max_iter: int, solver: str) -> None:
    if not (np.isfinite(l1_penalty) and l1_penalty >= 0):
        raise OptionError(f"l1_penalty={l1_penalty!r} is not a penalty: give a finite number, 0 or more")
    if tol is not None and not tol >= 0:
        raise OptionError(f"tol={tol!r} is not a tolerance: give a number, 0 or more, or None")
    if isinstance(max_iter, bool) or not hasattr(max_iter, "__index__") or max_iter < 0:
        raise OptionError(f"max_iter={max_iter!r} is not a number of steps")
    if solver not in ("auto", "coordinate", "fista"):
        raise OptionError(f"solver={solver!r} is unknown: use 'auto', 'coordinate' or 'fista'")
    if moments.n_rows < 1:
        raise OptionError("the moments hold no usable row")


def residual_terms(moments: LaggedMoments, offset: FloatArray | FixedRank | None) -> tuple[FloatArray, FloatArray]:
    """``C - A0 S`` (d, pd), and the diagonal of ``sum (y_t - A0 x_t)(y_t - A0 x_t)'``."""
    energy = np.diag(moments.yy).copy()
    if offset is None:
        return moments.yx, energy
    if isinstance(offset, FixedRank):
        product = (offset.u * offset.s) @ (offset.v.T @ moments.xx)
        dense = offset.dense()
    else:
        dense = np.asarray(offset, dtype=np.float64)
        product = dense @ moments.xx
    energy += np.einsum("ij,ij->i", product - 2.0 * moments.yx, dense)
    # Rounding may not make an energy negative.
    return moments.yx - product, np.maximum(energy, 0.0)
