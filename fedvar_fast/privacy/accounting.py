"""Exact accounting of Gaussian noise: one release, many releases, and back.

Adding ``N(0, sigma^2)`` to something that one neighbour can move by at most ``Delta`` (in Frobenius norm) is
``mu``-Gaussian-DP with ``mu = Delta / sigma``. Such releases compose *exactly*, also when a later one depends
on what earlier ones showed: ``mu = sqrt(mu_1^2 + ... + mu_n^2)``. The (epsilon, delta) curve of ``mu`` is

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

Sources: J. Dong, A. Roth, W. Su, "Gaussian Differential Privacy", JRSS-B 84 (2022), Corollaries 1 and 2; B.
Balle, Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, ndtr, ndtri

from fedvar_fast.exceptions import OptionError, OptionTypeError

__all__ = [
    "classical_sigma",
    "compose_mu",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "noise_multiplier",
    "real_option",
]

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
# So deep in the tail the normal density, and with it delta, is below the smallest positive float.
_UNDERFLOW = 39.0
# Half width up to which the difference of two Mills ratios is integrated instead of subtracted.
_INTEGRATE_BELOW = 0.5
# On an interval of length <= 1 sixteen Gauss-Legendre nodes integrate 1 - u M(u) to rounding.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_LARGEST = float(np.finfo(np.float64).max)
_RTOL = 4.0 * np.finfo(np.float64).eps


def real_option(name: str, value: object) -> float:
    """The option ``value`` as a float.

    Raises
    ------
    OptionTypeError
        When ``value`` is not a real number (a bool is not one either).
    OptionError
        When ``value`` is not a number (NaN).
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}.")
    number = float(value)
    if math.isnan(number):
        raise OptionError(f"{name} must be a number, got NaN.")
    return number


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The smallest delta that goes with ``epsilon`` for a ``mu``-Gaussian-DP release.

    ``delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)``, without overflow and without
    cancellation: the relative error stays near that of the input, also where delta is 1e-200 or mu is 1e-150.

    Parameters
    ----------
    epsilon : float
        ``0 <= epsilon <= inf``.
    mu : float
        ``0 <= mu <= inf``; 0 means that nothing is released, ``inf`` that there is no noise.

    Returns
    -------
    float
        delta in [0, 1]; 0.0 where the true value is below the smallest positive float.

    Raises
    ------
    OptionError, OptionTypeError
        When an argument is negative, or not a number.

    References
    ----------
    Dong, Roth and Su (2022), Corollary 1; Balle and Wang (2018), Theorem 8.
    """
    eps, strength = _nonnegative("epsilon", epsilon), _nonnegative("mu", mu)
    if strength == 0.0:
        return 0.0
    if math.isinf(strength):
        return 1.0
    if eps / strength - strength / 2.0 > _UNDERFLOW:
        return 0.0
    return math.exp(_log_delta(eps, strength))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon that goes with ``delta`` for a ``mu``-Gaussian-DP release.

    Inverts :func:`gaussian_delta` in ``epsilon``; 0.0 when already ``delta(0) <= delta``.

    Parameters
    ----------
    mu : float
        ``0 <= mu <= inf``.
    delta : float
        ``0 < delta < 1``.

    Returns
    -------
    float
        epsilon >= 0; ``inf`` for ``mu = inf`` (released without noise).

    Raises
    ------
    OptionError, OptionTypeError
        When an argument is out of range, or not a number.

    References
    ----------
    Dong, Roth and Su (2022), Corollary 1.
    """
    strength, target = _nonnegative("mu", mu), _probability("delta", delta)
    log_target = math.log(target)
    if strength == 0.0 or _log_delta(0.0, min(strength, _LARGEST)) <= log_target:
        return 0.0
    # delta(epsilon) < Phi(mu/2 - epsilon/mu), so that the root lies below the epsilon where the right side is
    # delta.
    upper = strength * (strength / 2.0 - float(ndtri(target)))
    if math.isinf(upper) or _log_delta(upper, strength) >= log_target:  # the bound is the answer, up to rounding
        return upper
    return _root(lambda value: _log_delta(value, strength) - log_target, 0.0, upper)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest ``mu`` that stays within (``epsilon``, ``delta``).

    Inverts :func:`gaussian_delta` in ``mu`` to a relative 1e-14; for ``epsilon = 0`` it is
    ``2 sqrt(2) erfinv(delta)``.

    Parameters
    ----------
    epsilon : float
        ``0 <= epsilon < inf``.
    delta : float
        ``0 < delta < 1``.

    Raises
    ------
    OptionError, OptionTypeError
        When an argument is out of range, or not a number.

    References
    ----------
    Dong, Roth and Su (2022), Corollary 1.
    """
    eps, target = _finite_epsilon(epsilon), _probability("delta", delta)
    without_epsilon = 2.0 * math.sqrt(2.0) * float(erfinv(target))
    if eps == 0.0:
        return without_epsilon
    # Two lower bounds: delta falls in epsilon, and delta < Phi(mu/2 - epsilon/mu) (a quadratic inequality in
    # mu).
    quantile = float(ndtri(target))
    root = math.hypot(quantile, math.sqrt(2.0 * eps))
    quadratic = 2.0 * eps / (root - quantile) if quantile < 0.0 else quantile + root
    lower = max(without_epsilon, quadratic)
    log_target = math.log(target)
    if _log_delta(eps, lower) >= log_target:  # the bound is the answer, up to rounding
        return lower
    upper = 2.0 * lower
    while _log_delta(eps, upper) < log_target:
        upper *= 2.0
    return _root(lambda value: _log_delta(eps, value) - log_target, lower, upper)


def compose_mu(mus: Iterable[float]) -> float:
    """The strength of several Gaussian releases together: ``mu = sqrt(sum_n mu_n^2)``.

    Parameters
    ----------
    mus : iterable of float
        Each ``0 <= mu <= inf``; empty gives 0.0.

    Raises
    ------
    OptionError, OptionTypeError
        When an entry is negative, or not a number.

    References
    ----------
    Dong, Roth and Su (2022), Corollary 2 (adaptive composition).
    """
    return math.hypot(*(_nonnegative("mu", mu) for mu in mus))


def noise_multiplier(epsilon: float, delta: float, n_rounds: int) -> float:
    """``sigma / Delta`` per round with which ``n_rounds`` equal rounds together are (epsilon, delta)-DP.

    ``sqrt(n_rounds) / mu`` with the ``mu`` of :func:`gaussian_mu`.

    Parameters
    ----------
    epsilon : float
        Total epsilon, ``0 <= epsilon < inf``.
    delta : float
        Total delta, ``0 < delta < 1``.
    n_rounds : int
        Number of equal releases, at least 1.

    Returns
    -------
    float
        Noise standard deviation in units of the sensitivity.

    Raises
    ------
    OptionError, OptionTypeError
        When an argument is out of range or of the wrong type.

    Examples
    --------
    >>> round(noise_multiplier(2.0, 1e-5, 100), 6)
    19.938124
    """
    rounds = _rounds(n_rounds)
    return math.sqrt(rounds) / gaussian_mu(epsilon, delta)


def epsilon(noise_multiplier: float, delta: float, n_rounds: int) -> float:
    """Total epsilon at ``delta`` of ``n_rounds`` releases with ``sigma = noise_multiplier * Delta`` each.

    The epsilon of ``mu = sqrt(n_rounds) / noise_multiplier``; the inverse of :func:`noise_multiplier`.

    Parameters
    ----------
    noise_multiplier : float
        ``sigma / Delta``, positive and finite.
    delta : float
        Total delta, ``0 < delta < 1``.
    n_rounds : int
        Number of equal releases, at least 1.

    Raises
    ------
    OptionError, OptionTypeError
        When an argument is out of range or of the wrong type.

    Examples
    --------
    >>> round(epsilon(19.938124456, 1e-5, 100), 6)
    2.0
    """
    multiplier = real_option("noise_multiplier", noise_multiplier)
    if not 0.0 < multiplier < math.inf:
        raise OptionError(f"noise_multiplier must be positive and finite, got {multiplier}.")
    return gaussian_epsilon(math.sqrt(_rounds(n_rounds)) / multiplier, delta)


def classical_sigma(epsilon: float, delta: float) -> float:
    """``sigma / Delta`` of the classical Gaussian mechanism, the paper's choice.

    ``sqrt(2 ln(1.25/delta)) / epsilon``: a sufficient condition, proved for one release and ``epsilon < 1``
    only. Nothing here composes it.

    Parameters
    ----------
    epsilon : float
        ``0 < epsilon < inf``.
    delta : float
        ``0 < delta < 1``.

    Raises
    ------
    OptionError, OptionTypeError
        When an argument is out of range, or not a number.

    References
    ----------
    C. Dwork, A. Roth, "The Algorithmic Foundations of Differential Privacy" (2014), Theorem A.1.
    """
    eps, target = _finite_epsilon(epsilon), _probability("delta", delta)
    if eps == 0.0:
        raise OptionError("epsilon must be positive, got 0: no finite noise reaches it.")
    return math.sqrt(2.0 * math.log(1.25 / target)) / eps


def _log_delta(epsilon: float, mu: float) -> float:
    """``log delta(epsilon)`` for ``0 < mu < inf``, ``0 <= epsilon < inf``, not more than 40 deep in the tail.

    With ``h = mu/2``, ``u = epsilon/mu - h``, ``v = epsilon/mu + h`` and the Mills ratio ``M = (1 -
    Phi)/phi``, the identity ``exp(epsilon) phi(v) = phi(u)`` turns the formula into ``delta = phi(u) (M(u) -
    M(v))``: no large factor is left, and the only subtraction is one of like numbers, done by the branch that
    keeps its digits.
    """
    half = mu / 2.0
    near, far = epsilon / mu - half, epsilon / mu + half
    log_density = -0.5 * near * near - _LOG_SQRT_2PI
    if half <= _INTEGRATE_BELOW:
        return log_density + math.log(_mills_drop(epsilon / mu, half))
    if near >= 0.0:
        return log_density + math.log(_mills(near) - _mills(far))
    # Left of the centre M(u) grows like 1/phi(u); Phi(-u) >= 1/2 itself is the safe form.
    return math.log(float(ndtr(-near)) - math.exp(log_density) * _mills(far))


def _mills(u: float) -> float:
    """Mills ratio ``(1 - Phi(u)) / phi(u)``."""
    return math.sqrt(math.pi / 2.0) * float(erfcx(u / math.sqrt(2.0)))


def _mills_drop(centre: float, half: float) -> float:
    """``M(centre - half) - M(centre + half)``, the integral of ``-M'(u) = 1 - u M(u) > 0``."""
    points = centre + half * _NODES
    slope = 1.0 - points * (math.sqrt(math.pi / 2.0) * erfcx(points / math.sqrt(2.0)))
    return half * float(_WEIGHTS @ slope)


def _root(function: Callable[[float], float], lower: float, upper: float) -> float:
    """Root of a monotone ``function`` on ``[lower, upper]`` to the last digits of a float."""
    return float(brentq(function, lower, upper, xtol=max(1e-16 * upper, math.ulp(0.0)), rtol=_RTOL, maxiter=1000))


def _nonnegative(name: str, value: object) -> float:
    number = real_option(name, value)
    if number < 0.0:
        raise OptionError(f"{name} must not be negative, got {number}.")
    return number


def _finite_epsilon(value: object) -> float:
    number = _nonnegative("epsilon", value)
    if math.isinf(number):
        raise OptionError("epsilon must be finite: leave the noise out if no privacy is wanted.")
    return number


def _probability(name: str, value: object) -> float:
    number = real_option(name, value)
    if not 0.0 < number < 1.0:
        raise OptionError(f"{name} must lie strictly between 0 and 1, got {number}.")
    return number


def _rounds(value: object) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise OptionTypeError(f"n_rounds must be a whole number, got {value!r} of type {type(value).__name__}.")
    if value < 1:
        raise OptionError(f"n_rounds must be at least 1, got {value}.")
    return int(value)
