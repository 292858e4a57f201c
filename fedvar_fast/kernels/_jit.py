"""Numba kernels: loops that branch or recur over time, where no GEMM helps.

Importing this module imports Numba (about half a second), so callers import it inside the function that needs
it. Every kernel has its plain NumPy twin in ``_reference_jit.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from fedvar_fast._typing import FloatArray

__all__ = ["simulate_var"]


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled on first call, without the GIL; the machine code is kept on disk where possible.

    Neither ``fastmath`` nor ``parallel``: the order of the sums, and so every digit, is fixed by the source.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Numba looks for a writable folder (NUMBA_CACHE_DIR, the package, the user's cache) and raises when
        # there is none, as in a read-only container. Then each process compiles for itself: slower to start,
        # same results.
        return njit(nogil=True)(function)


@_compiled
def simulate_var(coef: FloatArray, innovations: FloatArray, initial: FloatArray) -> FloatArray:
    """Run a vector autoregression forward in time.

    ``y_t = sum_{j=1..p} A_j y_{t-j} + e_t`` with ``coef = [A_1 ... A_p]``.

    Parameters
    ----------
    coef : (d, p*d) float64 array
        Coefficients, one block of ``d`` columns per lag, the latest lag first.
    innovations : (T, d) float64 array
        ``e_1 ... e_T``.
    initial : (p, d) float64 array
        The rows before the first one, oldest first.

    Returns
    -------
    (T, d) float64 array
        ``y_1 ... y_T``.

    Notes
    -----
    Shapes are the caller's duty: compiled code checks none. The sum over ``x_t`` runs outside and the
    variable inside, so that the inner loop is an ``axpy`` which vectorises without reordering any sum.
    Everything is written as loops on purpose: array expressions (slice assignment, transposition) compile ten
    times slower.
    """
    n_rows, dim = innovations.shape
    order = initial.shape[0]
    by_regressor = np.empty((order * dim, dim))
    for m in range(order * dim):
        for i in range(dim):
            by_regressor[m, i] = coef[i, m]
    path = np.empty((order + n_rows, dim))
    for t in range(order):
        for i in range(dim):
            path[t, i] = initial[t, i]
    for t in range(order, order + n_rows):
        for i in range(dim):
            path[t, i] = innovations[t - order, i]
        for lag in range(1, order + 1):
            first = (lag - 1) * dim
            for m in range(dim):
                value = path[t - lag, m]
                for i in range(dim):
                    path[t, i] += by_regressor[first + m, i] * value
    return path[order:]
