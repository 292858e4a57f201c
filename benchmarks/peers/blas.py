"""NumPy and SciPy BLAS on a design matrix."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from benchmarks.plain import design, moments

__all__ = ["least_squares", "moments", "moments_scipy"]


def moments_scipy(y, order):
    """`moments` by SciPy's own OpenBLAS: rank-k updates, their triangles mirrored."""
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
