"""Plain NumPy twins of the Numba kernels in ``_jit.py``: the tests' oracle."""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import FloatArray

__all__ = ["simulate_var_reference"]


def simulate_var_reference(coef: FloatArray, innovations: FloatArray, initial: FloatArray) -> FloatArray:
    """Run a vector autoregression forward in time: the twin of ``_jit.simulate_var``.

    ``y_t = A x_t + e_t`` with ``x_t = [y_{t-1}; ...; y_{t-p}]``.

    Parameters
    ----------
    coef : (d, p*d) array
        ``A = [A_1 ... A_p]``.
    innovations : (T, d) array
        ``e_1 ... e_T``.
    initial : (p, d) array
        The rows before the first one, oldest first.

    Returns
    -------
    (T, d) array
        ``y_1 ... y_T``.
    """
    order = len(initial)
    path = np.concatenate([initial, innovations])
    for t in range(order, len(path)):
        regressors = path[t - order : t][::-1].ravel()
        path[t] += coef @ regressors
    return path[order:]
