"""Least squares from moments: all lags, or each variable's own."""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.moments import LaggedMoments

__all__ = ["least_squares", "own_lags"]


def least_squares(moments: LaggedMoments) -> FloatArray:
    """``C S^+`` (d, pd), the least-squares solution of minimum norm.

    By Cholesky; where ``S`` is singular to working accuracy by eigenvalues, of which those below ``pd eps`` times the
    largest are rounding, not data, and are left out.
    """
    # Fewer rows than coefficients: singular for certain, whatever rounding makes of the pivots.
    lower = _cholesky(moments.xx) if moments.n_rows >= len(moments.xx) else None
    if lower is not None:
        from scipy.linalg import cho_solve

        return np.ascontiguousarray(cho_solve((lower, True), moments.yx.T, check_finite=False).T)
    values, vectors = np.linalg.eigh(moments.xx)
    kept = values > len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
    basis = vectors[:, kept]
    return np.ascontiguousarray((moments.yx @ basis / values[kept]) @ basis.T)


def _cholesky(xx: FloatArray) -> FloatArray | None:
    """Lower factor of ``S``, or None where ``S`` is singular to working accuracy."""
    from scipy.linalg import LinAlgError, cholesky

    try:
        lower: FloatArray = cholesky(xx, lower=True, check_finite=False)
    except LinAlgError:
        return None
    pivots = np.diag(lower) ** 2
    floor = len(xx) * np.finfo(np.float64).eps * np.diag(xx)
    return lower if np.all(pivots > floor) else None


def own_lags(moments: LaggedMoments) -> FloatArray:
    """Least squares of each variable on its own ``p`` lags: (d, pd), zero elsewhere."""
    dim, order = moments.dim, moments.order
    coef = np.zeros_like(moments.yx)
    for i in range(dim):
        at = i + dim * np.arange(order)
        coef[i, at] = np.linalg.lstsq(moments.xx[np.ix_(at, at)], moments.yx[i, at], rcond=None)[0]
    return coef
