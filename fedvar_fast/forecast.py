"""Iterated forecasts and their error variances, in the units of the scaled data."""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray

__all__ = ["forecast_variances", "iterate", "moving_average", "one_step", "spectral_radius"]

#: Up to this companion dimension all eigenvalues are computed; above it Arnoldi, for the largest only.
_DENSE_COMPANION = 256


def iterate(coef: FloatArray, recent: FloatArray, steps: int, constant: AnyArray | None = None) -> FloatArray:
    """``y_{t+h} = sum_j A_j y_{t+h-j}``, h = 1..steps, each forecast fed back as a lag.

    Parameters
    ----------
    coef : ndarray, shape (d, pd)
        ``[A_1 ... A_p]``.
    recent : ndarray, shape (p, d)
        The last ``p`` rows, oldest first.
    steps : int
    constant : ndarray of bool, shape (d,), optional
        Variables that never change: their forecast is their last value.

    Returns
    -------
    ndarray, shape (steps, d)
    """
    order, dim = recent.shape
    path = np.empty((order + steps, dim))
    path[:order] = recent
    for h in range(steps):
        now = order + h
        path[now] = coef @ path[now - order : now][::-1].ravel()
        if constant is not None:
            path[now, constant] = recent[-1, constant]
    return path[order:]


def one_step(coef: FloatArray, rows: FloatArray) -> FloatArray:
    """One-step predictions of rows ``p .. T-1`` from the rows before them: (T - p, d); NaN where a lag is missing."""
    dim = rows.shape[1]
    order = coef.shape[1] // dim
    count = len(rows) - order
    predicted = np.zeros((count, dim))
    for lag in range(1, order + 1):
        predicted += rows[order - lag : order - lag + count] @ coef[:, (lag - 1) * dim : lag * dim].T
    return predicted


def moving_average(coef: FloatArray, steps: int) -> FloatArray:
    """``Psi_0 = I, Psi_h = sum_{j <= min(h, p)} A_j Psi_{h-j}`` for h < steps: (steps, d, d)."""
    dim = len(coef)
    order = coef.shape[1] // dim
    psi = np.zeros((steps, dim, dim))
    psi[0] = np.eye(dim)
    for h in range(1, steps):
        for lag in range(1, min(h, order) + 1):
            psi[h] += coef[:, (lag - 1) * dim : lag * dim] @ psi[h - lag]
    return psi


def forecast_variances(coef: FloatArray, noise_cov: FloatArray, steps: int) -> FloatArray:
    """Diagonals of ``sum_{i<h} Psi_i Sigma Psi_i'``, h = 1..steps: (steps, d) (Lütkepohl 2005, section 2.2.3)."""
    psi = moving_average(coef, steps)
    by_step = np.einsum("hij,jk,hik->hi", psi, noise_cov, psi, optimize=True)
    return np.cumsum(np.maximum(by_step, 0.0), axis=0)


def spectral_radius(coef: FloatArray) -> float:
    """Largest modulus of the companion matrix's eigenvalues; the model is stable when it is below 1."""
    dim, width = coef.shape
    if width > _DENSE_COMPANION:
        large = _arnoldi_radius(coef)
        if large is not None:
            return large
    companion = np.zeros((width, width))
    companion[:dim] = coef
    companion[dim:, :-dim] = np.eye(width - dim)
    return float(np.max(np.abs(np.linalg.eigvals(companion)), initial=0.0))


def _arnoldi_radius(coef: FloatArray) -> float | None:
    """The same by implicitly restarted Arnoldi from a fixed start; None where that does not converge."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigs

    dim, width = coef.shape

    def apply(x: FloatArray) -> FloatArray:
        flat = np.ravel(x)
        return np.concatenate([coef @ flat, flat[: width - dim]])

    operator = LinearOperator((width, width), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(width)
    try:
        values = eigs(operator, k=4, which="LM", v0=start, tol=1e-10, ncv=32, return_eigenvectors=False)
    except ArpackError:
        # No convergence, or a zero matrix, whose Krylov space is empty.
        return None
    return float(np.max(np.abs(values)))
