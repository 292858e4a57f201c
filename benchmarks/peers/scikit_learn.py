"""scikit-learn's Lasso: coordinate descent, with the Gram matrix given."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import Lasso


def lasso_gram(x, response, gram, l1_penalty, tol, max_iter=10_000):
    """``min (1/T)||y - X w||^2 + penalty ||w||_1``, a row a column of `response`; alpha is half the penalty.

    scikit-learn stops when the gap is at most tol ||y||^2, as we do.
    """
    model = Lasso(0.5 * l1_penalty, fit_intercept=False, precompute=gram, tol=tol, max_iter=max_iter)
    return np.atleast_2d(model.fit(x, response).coef_)
