"""NumPy and SciPy BLAS on a design matrix."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from benchmarks.plain import design


def moments(y, order):
    """``X'X`` (NumPy: a rank-k update), ``Y'X``, ``Y'Y``."""
    x, response = design(y, order)
    return x.T @ x, response.T @ x, response.T @ response


def moments_scipy(y, order):
    """The same by SciPy's own OpenBLAS, the upper triangle mirrored."""
    x, response = design(y, order)
    # The transposes are Fortran-ordered views: nothing is copied.
    upper = scipy.linalg.blas.dsyrk(1.0, x.T)
    energy = scipy.linalg.blas.dsyrk(1.0, response.T)
    cross = scipy.linalg.blas.dgemm(1.0, response.T, x.T, trans_b=True)
    return _mirrored(upper), cross, _mirrored(energy)


def _mirrored(upper):
    return np.triu(upper) + np.triu(upper, 1).T


def least_squares(y, order):
    """Normal equations by Cholesky."""
    xx, yx, _ = moments(y, order)
    return scipy.linalg.solve(xx, yx.T, assume_a="pos").T
