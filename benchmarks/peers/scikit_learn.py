"""scikit-learn: coordinate descent with and without the Gram matrix; the randomised SVD."""

from __future__ import annotations

import numpy as np


def lasso_gram(x, response, gram, l1_penalty, tol, max_iter=10_000):
    """With ``X'X`` given; alpha is half the penalty. It stops on a gap of at most tol ||y||^2, of half our loss."""
    from sklearn.linear_model import Lasso

    model = Lasso(0.5 * l1_penalty, fit_intercept=False, precompute=gram, tol=tol, max_iter=max_iter)
    return np.atleast_2d(model.fit(x, response).coef_)


def lasso(x, response, l1_penalty, tol, max_iter=10_000):
    """On the design matrix (Fortran order spares it a copy)."""
    from sklearn.linear_model import Lasso

    model = Lasso(0.5 * l1_penalty, fit_intercept=False, tol=tol, max_iter=max_iter)
    return np.atleast_2d(model.fit(x, response).coef_)


def randomized_svd(matrix, rank, seed=0):
    """U (m, r), s (r,), V' (r, n), with its default oversampling and power iterations."""
    from sklearn.utils.extmath import randomized_svd as theirs

    return theirs(matrix, rank, random_state=seed)
