"""skglm: working sets with Anderson acceleration, on the design matrix."""

from __future__ import annotations

import numpy as np


def lasso(x, response, l1_penalty, tol):
    """A fit a column; alpha is half the penalty. It stops on the largest violation of the optimality conditions."""
    from skglm import Lasso

    x = np.asfortranarray(x)
    model = Lasso(alpha=0.5 * l1_penalty, fit_intercept=False, tol=tol)
    return np.array([model.fit(x, column).coef_.copy() for column in np.ascontiguousarray(response.T)])
