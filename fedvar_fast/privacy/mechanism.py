"""The options of a private fit, and the noise that they ask for."""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import DataError, OptionError, OptionTypeError
from fedvar_fast.privacy.accounting import classical_sigma, real_option

__all__ = ["Privacy", "kappa_from_scale", "noise_generator", "noisy_pair"]


@dataclass(frozen=True)
class Privacy:
    """What a private fit promises, and how its noise is sized.

    Parameters
    ----------
    epsilon, delta : float
        The privacy parameters, ``epsilon > 0`` and ``0 < delta < 1``. With ``calibration="paper"`` they
        belong to *one round*; ``model.privacy_report_`` says what the whole fit amounts to.
    calibration : {"paper"}, default "paper"
        ``"paper"``: ``sigma = kappa sqrt(2 ln(1.25/delta)) / epsilon`` in every round, not composed over the
        rounds.
    kappa : "data" or float, default "data"
        The sensitivity that is *assumed* for a gradient message. A number is taken as given; ``"data"`` takes
        :func:`kappa_from_scale` of each client, which is typical, not worst case, and depends on the data
        itself.
    reproducible : bool, default False
        Draw the noise from ``random_state`` instead of system entropy. Whoever knows the seed can subtract
        the noise: the report then says "NOT PRIVATE". For tests and simulation studies only.

    Raises
    ------
    OptionError
        When a value is out of range, or the calibration is unknown.
    OptionTypeError
        When a value is of the wrong type.

    Notes
    -----
    Source of the calibration: paper, Section 3.3, after Dwork and Roth (2014), Theorem A.1.
    """

    epsilon: float
    delta: float
    calibration: str = field(default="paper", kw_only=True)
    kappa: float | str = field(default="data", kw_only=True)
    reproducible: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        classical_sigma(self.epsilon, self.delta)  # raises unless epsilon > 0 is finite and 0 < delta < 1
        if not isinstance(self.calibration, str) or self.calibration != "paper":
            raise OptionError(
                f'calibration={self.calibration!r} is unknown: only "paper" (each round by itself) exists at present.'
            )
        _check_kappa(self.kappa)
        if not isinstance(self.reproducible, bool):
            raise OptionTypeError(f"reproducible must be True or False, got {self.reproducible!r}.")

    def round_sigma(self, kappa: float) -> float:
        """Noise standard deviation of one round, ``kappa sqrt(2 ln(1.25/delta)) / epsilon``.

        Parameters
        ----------
        kappa : float
            Assumed sensitivity of the client's message, positive and finite.

        Raises
        ------
        OptionError, OptionTypeError
            When ``kappa`` is not a positive finite number.

        Notes
        -----
        Source: paper, Section 3.3.
        """
        return _positive("kappa", kappa) * classical_sigma(self.epsilon, self.delta)


def kappa_from_scale(trace_xx: float, trace_yy: float, n_rows: int, order: int) -> float:
    """The ``kappa`` that ``kappa="data"`` stands for: what one typical observation moves the mean gradient.

    ``kappa = 4 (p+1)/T * sqrt(trace_xx/T * trace_yy/T)``.

    The gradient ``(2/T) sum_t (A x_t - y_t) x_t'`` gets ``(2/T) ||e_t|| ||x_t||`` in Frobenius norm from one
    row. A replaced observation stands in ``p + 1`` rows (once as response, ``p`` times as a lag), and in each
    of them the old contribution goes and a new one comes, hence the factor two; norms are taken at their root
    mean square, with the response in place of the residual.

    This is a *typical* size, not a bound: an outlier moves the gradient further. It is also computed from the
    very data it is meant to protect, without protection. Both are said in the report.

    Parameters
    ----------
    trace_xx, trace_yy : float
        ``sum_t ||x_t||^2`` and ``sum_t ||y_t||^2``, over the usable rows of the scaled data.
    n_rows : int
        Number of usable rows ``T``.
    order : int
        Number of lags ``p``.

    Raises
    ------
    DataError
        When the data do not vary at all, so that no noise level follows from them.

    Notes
    -----
    The paper (Section 3.3) has kappa "chosen adaptively based on the scale of the data" and gives no formula;
    this one is ours.
    """
    kappa = 4.0 * (order + 1) / n_rows * math.sqrt(trace_xx / n_rows) * math.sqrt(trace_yy / n_rows)
    if not 0.0 < kappa < math.inf:
        raise DataError(
            f"kappa cannot be taken from data without variation (it would be {kappa}): "
            "give Privacy(kappa=...) a number."
        )
    return kappa


def noisy_pair(
    R: FloatArray, B: FloatArray, U: FloatArray, sigma: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """A gradient pair with the noise of a projected dense draw, at thin cost.

    For ``W`` (d x pd) with independent ``N(0, sigma^2)`` entries, the pair of ``P_T(W)`` is ``U'W`` and
    ``(I - UU') W V``. ``U`` and ``V`` have orthonormal columns, so these are independent, the first with
    independent ``N(0, sigma^2)`` entries and the second with the law of ``(I - UU') Z``, ``Z`` (d x r) like
    ``W``: ``R + N(0, sigma^2)^{r x pd}`` and ``B + (I - UU') N(0, sigma^2)^{d x r}``.

    Parameters
    ----------
    R : (r, pd) array
        ``U'G``.
    B : (d, r) array
        ``(I - UU') G V``.
    U : (d, r) array
        Left factor of the point, orthonormal columns.
    sigma : float
        Noise standard deviation, positive and finite.
    rng : numpy.random.Generator
        Source of the noise; ``R``'s is drawn first.

    Returns
    -------
    (r, pd) array, (d, r) array
        New arrays; the arguments are not changed.

    Raises
    ------
    OptionError, OptionTypeError
        When ``sigma`` is not a positive finite number: a raw message must not pass for a noisy one.

    Notes
    -----
    Source: paper, Algorithm 1 (the law); its thin form is ours.
    """
    scale = _positive("sigma", sigma)
    noise_r = scale * rng.standard_normal(R.shape)
    noise_b = scale * rng.standard_normal(B.shape)
    return R + noise_r, B + (noise_b - U @ (U.T @ noise_b))


def noise_generator(privacy: Privacy, random_state: int | None, client: str, index: int = 0) -> np.random.Generator:
    """The generator for one release stream of one client.

    Parameters
    ----------
    privacy : Privacy
        With ``reproducible=False`` the generator is seeded with 256 fresh bits from the operating system, and
        ``random_state`` is not used: never one shared seed, never the same noise twice.
    random_state : int or None
        The seed that ``reproducible=True`` needs.
    client : str
        With ``reproducible=True`` the stream belongs to the *name*: other clients, and their order, do not
        change it.
    index : int, default 0
        Number of the stream within the client, at least 0.

    Returns
    -------
    numpy.random.Generator
        PCG64. Its seed is unpredictable, but it is not a cryptographic generator, and floating-point
        Gaussians are not safe against attacks on their last digits.

    Raises
    ------
    OptionTypeError
        When ``reproducible=True`` and ``random_state`` is not an integer.
    OptionError
        When ``random_state`` or ``index`` is negative.
    """
    if not privacy.reproducible:
        return np.random.default_rng(np.random.SeedSequence(secrets.randbits(256), pool_size=8))
    if isinstance(random_state, bool) or not isinstance(random_state, Integral):
        raise OptionTypeError(
            f"Privacy(reproducible=True) needs an integer random_state to draw its noise from, got {random_state!r}."
        )
    if random_state < 0 or index < 0:
        raise OptionError(f"random_state and index must not be negative, got {random_state} and {index}.")
    # A digest, not hash() (salted per process) and not the position; the label keeps these streams apart from
    # any other use of the same seed.
    digest = hashlib.sha256(b"fedvar_fast noise\0" + client.encode()).digest()
    key = (*np.frombuffer(digest, dtype="<u4").tolist(), int(index))
    return np.random.default_rng(np.random.SeedSequence(int(random_state), spawn_key=key))


def _check_kappa(kappa: object) -> None:
    if isinstance(kappa, str):
        if kappa != "data":
            raise OptionError(f'kappa must be a positive number or "data", got {kappa!r}.')
        return
    _positive("kappa", kappa)


def _positive(name: str, value: object) -> float:
    number = real_option(name, value)
    if not 0.0 < number < math.inf:
        raise OptionError(f"{name} must be positive and finite, got {number}.")
    return number
