"""statsmodels: least squares of a vector autoregression."""

from __future__ import annotations

import numpy as np


def least_squares(y, order):
    """``[A_1 ... A_p]`` (d, pd), without an intercept."""
    from statsmodels.tsa.api import VAR

    return np.hstack(list(VAR(y).fit(order, trend="n").coefs))
