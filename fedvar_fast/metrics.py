"""Measures of forecasts, as functions of arrays: squared errors, RMSFE, standard errors, Diebold and Mariano's test."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import DataError, OptionError

__all__ = [
    "DieboldMariano",
    "diebold_mariano",
    "mean_standard_error",
    "rmsfe",
    "rmsfe_standard_error",
    "squared_errors",
]


class DieboldMariano(NamedTuple):
    """A paired comparison of two forecasts.

    Attributes
    ----------
    difference : float
        Mean loss of the first less that of the second: below 0 the first is better.
    standard_error, statistic, p_value : float
        NaN where they are not defined: too few forecasts, or a difference that never varies.
    n_forecasts : int
    """

    difference: float
    standard_error: float
    statistic: float
    p_value: float
    n_forecasts: int


def squared_errors(forecasts: npt.ArrayLike, actuals: npt.ArrayLike) -> FloatArray:
    """``(forecast - actual)^2``, element by element.

    Raises
    ------
    DataError
        If the shapes differ.
    """
    predicted, observed = np.asarray(forecasts, dtype=np.float64), np.asarray(actuals, dtype=np.float64)
    if predicted.shape != observed.shape:
        raise DataError(f"forecasts have shape {predicted.shape} and actual values {observed.shape}: give equal shapes")
    return (predicted - observed) ** 2


def rmsfe(forecasts: npt.ArrayLike, actuals: npt.ArrayLike, *, by_variable: bool = False) -> float | FloatArray:
    """Root mean squared forecast error.

    Parameters
    ----------
    forecasts, actuals : array, shape (n, d)
    by_variable : bool
        One figure for each variable, ``sqrt(mean_t e_{tj}^2)``, instead of all pooled, ``sqrt(mean_{t,j} e_{tj}^2)``.

    Returns
    -------
    float, or ndarray of shape (d,)

    Raises
    ------
    DataError
        If the shapes differ.
    """
    errors = squared_errors(forecasts, actuals)
    return np.sqrt(errors.mean(axis=0)) if by_variable else float(np.sqrt(errors.mean()))


def mean_standard_error(values: npt.ArrayLike, horizon: int = 1) -> float:
    """Standard error of the mean of a series whose autocovariances vanish from lag ``h`` on, as ``h``-step errors' do.

    ``sqrt(v / n) / f``, with ``v = g_0 + 2 sum_{j<h} g_j`` (``g_j`` the autocovariances, division by n) and the
    small-sample factor ``f^2 = (n + 1 - 2h + h(h-1)/n) / n`` of Harvey, Leybourne and Newbold (1997). For ``h = 1``
    it is the usual ``s / sqrt(n)``. Where the sum ``v`` is not positive, as it may be for ``h > 1``, its terms get
    Bartlett's weights ``1 - j/h``, with which it cannot be negative.

    Parameters
    ----------
    values : array, shape (n,)
    horizon : int
        ``h``.

    Returns
    -------
    float
        NaN with fewer than ``h + 1`` values.

    Raises
    ------
    OptionError
        If ``horizon`` is below 1.
    """
    if horizon < 1:
        raise OptionError(f"horizon={horizon!r} is no whole number of 1 or more")
    series = np.asarray(values, dtype=np.float64)
    n = len(series)
    if n <= horizon:
        return math.nan
    centred = series - series.mean()
    covariances = np.array([centred[j:] @ centred[: n - j] for j in range(horizon)]) / n
    variance = covariances[0] + 2.0 * covariances[1:].sum()
    if variance <= 0.0:
        variance = covariances[0] + 2.0 * (1.0 - np.arange(1, horizon) / horizon) @ covariances[1:]
    factor = (n + 1 - 2 * horizon + horizon * (horizon - 1) / n) / n
    return math.sqrt(max(variance, 0.0) / n / factor)


def rmsfe_standard_error(losses: npt.ArrayLike, horizon: int = 1) -> float:
    """Standard error of ``sqrt(mean(losses))`` over the origins, by the delta method: ``se(mean) / (2 RMSFE)``.

    Parameters
    ----------
    losses : array, shape (n,)
        Mean squared error at each origin.
    horizon : int
        As in `mean_standard_error`.
    """
    series = np.asarray(losses, dtype=np.float64)
    root = math.sqrt(series.mean())
    return mean_standard_error(series, horizon) / (2.0 * root) if root > 0.0 else math.nan


def diebold_mariano(first: npt.ArrayLike, second: npt.ArrayLike, horizon: int = 1) -> DieboldMariano:
    """Diebold and Mariano's test of equal mean loss, with the small-sample correction.

    ``d_t = first_t - second_t``; statistic ``mean(d) / se(d)`` with `mean_standard_error`, two-sided p-value from
    Student's t with ``n - 1`` degrees of freedom (Diebold and Mariano 1995; Harvey, Leybourne and Newbold 1997).

    Parameters
    ----------
    first, second : array, shape (n,)
        Losses of two methods at the same origins.
    horizon : int
        ``h``: losses of ``h``-step forecasts may be correlated up to lag ``h - 1``.

    Returns
    -------
    DieboldMariano

    Raises
    ------
    DataError
        If the lengths differ.

    Notes
    -----
    statsmodels 0.15 has a test of this name; for ``h = 1`` it gives the same figures (a test of ours checks it). For
    longer horizons it weights the autocovariances after Bartlett, which the correction was not derived for.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 1 or len(one) == 0:
        raise DataError(f"losses of shapes {one.shape} and {other.shape} cannot be paired: give two equally long rows")
    differences = one - other
    mean, error = float(differences.mean()), mean_standard_error(differences, horizon)
    n = len(differences)
    # A difference that does not vary beyond rounding has no distribution to be compared with.
    if not error > 1e-14 * float(np.abs(one).mean() + np.abs(other).mean()):
        return DieboldMariano(mean, error, math.nan, math.nan, n)
    statistic = mean / error
    return DieboldMariano(mean, error, statistic, float(2.0 * stdtr(n - 1, -abs(statistic))), n)
