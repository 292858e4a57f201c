"""The options of a private fit, and the noise that they ask for."""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Integral
from typing import Any

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.exceptions import DataError, OptionError, OptionTypeError
from fedvar_fast.privacy.accounting import classical_sigma, gaussian_mu, real_option

__all__ = ["DEFAULT_SHARES", "Privacy", "add_noise", "kappa_from_scale", "noise_generator", "noisy_pair"]

#: Shares of the budget, in mu^2, of what a fit may release.
DEFAULT_SHARES = {"scale": 0.2, "rank": 0.1, "whitening": 0.15, "start": 0.08, "rounds": 0.54, "clip": 0.03}


@dataclass(frozen=True)
class Privacy:
    """What a private fit promises, and how its noise is sized.

    Parameters
    ----------
    epsilon, delta : float
        The privacy parameters, ``epsilon > 0`` and ``0 < delta < 1``: with ``calibration="total"`` of everything that
        a client sends in the whole fit, with ``"paper"`` of *one round*.
    unit : {"observation", "innovation", "client"}, default "observation"
        What is protected: one row of a client (its ``sensitive`` columns), one innovation with all that follows from
        it, or everything that a client has.
    sensitive : sequence of str, optional
        Only these columns of an observation are protected; the others are not. All by default.
    calibration : {"total", "paper"}, default "total"
        ``"total"``: epsilon and delta hold for all releases of a client together, scaling, start and clipping included.
        ``"paper"``: ``sigma = kappa sqrt(2 ln(1.25/delta)) / epsilon`` in every round, not composed over the rounds;
        scaling, step and start leave without noise.
    bounds : pair of floats, or mapping of column to pair, optional
        Public lower and upper bounds of the columns, from which centre and scale are released privately; values beyond
        them are drawn in. Needed where the estimator centres or scales, and for ``unit="innovation"``.
    clip : "adaptive" or float, default "adaptive"
        Norm to which each row's share of a gradient is clipped (the whole message with ``unit="client"``), in scaled
        units: from a private quantile, round by round, or a number.
    noise : {"system", "opendp"}, default "system"
        NumPy's Gaussians from system entropy, or OpenDP's sampler, which floating-point attacks do not break (needs
        the opendp extra; slow, but a message is only ``r (d + pd)`` numbers).
    shares : mapping of str to float, optional
        How the budget ``mu^2`` is split: "scale", "rank", "whitening", "start", "rounds", "clip"; those that a fit does
        not need go to the others in proportion. Missing ones keep their default.
    innovation_bound : float, optional
        With ``unit="innovation"``: how far, in the user's units, a replaced innovation may lie from the old one
        (Euclidean norm).
    stability : pair of floats, optional
        With ``unit="innovation"``: ``(M, rho)`` with ``||Psi_h||_op <= M rho^h``; an assumption, stated in the report.
    kappa : "data" or float, default "data"
        Only with ``calibration="paper"``: the sensitivity that is *assumed* for a gradient message. A number is taken
        as given; ``"data"`` takes :func:`kappa_from_scale` of each client, which is typical, not worst case, and
        depends on the data itself.
    ledger : path, optional
        Folder of the clients' ledger files, where what was spent stays written. In memory by default.
    reproducible : bool, default False
        Draw the noise from ``random_state`` instead of system entropy. Whoever knows the seed can subtract
        the noise: the report then says "NOT PRIVATE". For tests and simulation studies only.

    Raises
    ------
    OptionError
        When a value is out of range, or unknown, or one that the unit needs is missing.
    OptionTypeError
        When a value is of the wrong type.

    Notes
    -----
    Source of ``calibration="paper"``: paper, Section 3.3, after Dwork and Roth (2014), Theorem A.1. The total is ours.
    """

    epsilon: float
    delta: float
    unit: str = field(default="observation", kw_only=True)
    sensitive: Sequence[str] | None = field(default=None, kw_only=True)
    calibration: str = field(default="total", kw_only=True)
    bounds: Sequence[float] | Mapping[str, Sequence[float]] | None = field(default=None, kw_only=True)
    clip: float | str = field(default="adaptive", kw_only=True)
    noise: str = field(default="system", kw_only=True)
    shares: Mapping[str, float] | None = field(default=None, kw_only=True)
    innovation_bound: float | None = field(default=None, kw_only=True)
    stability: Sequence[float] | None = field(default=None, kw_only=True)
    kappa: float | str = field(default="data", kw_only=True)
    ledger: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    reproducible: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        classical_sigma(self.epsilon, self.delta)  # raises unless epsilon > 0 is finite and 0 < delta < 1
        _known("calibration", self.calibration, ("total", "paper"))
        _known("unit", self.unit, ("observation", "innovation", "client"))
        _known("noise", self.noise, ("system", "opendp"))
        _check_kappa(self.kappa)
        if not isinstance(self.reproducible, bool):
            raise OptionTypeError(f"reproducible must be True or False, got {self.reproducible!r}.")
        if isinstance(self.clip, str):
            _known("clip", self.clip, ("adaptive",))
        else:
            _positive("clip", self.clip)
        if self.reproducible and self.noise == "opendp":
            raise OptionError("noise='opendp' draws from the system's entropy only: leave reproducible=False.")
        if self.calibration == "paper" and (self.unit != "observation" or self.sensitive is not None):
            raise OptionError(
                "calibration='paper' has one unit, an observation with all its columns: use calibration='total' for "
                "others, or for sensitive columns."
            )
        for name, value in (self.shares or {}).items():
            _known("shares", name, tuple(DEFAULT_SHARES))
            _positive(f"shares[{name!r}]", value)
        self._check_sensitive()
        self._check_innovation()
        for name, pair in self.bounds.items() if isinstance(self.bounds, Mapping) else [("all columns", self.bounds)]:
            if pair is not None:
                _bound(name, pair)

    def _check_sensitive(self) -> None:
        if self.sensitive is None:
            return
        names = self.sensitive
        if isinstance(names, str) or not all(isinstance(name, str) for name in names) or not names:
            raise OptionTypeError(f"sensitive must be a list of one or more column names, got {names!r}.")
        if self.unit != "observation":
            raise OptionError(f"sensitive columns are a matter of unit='observation', not of unit={self.unit!r}.")

    def _check_innovation(self) -> None:
        if self.unit != "innovation":
            if self.stability is not None or self.innovation_bound is not None:
                raise OptionError("innovation_bound and stability are for unit='innovation': leave them out.")
            return
        if self.stability is None or self.innovation_bound is None or self.bounds is None:
            raise OptionError(
                "unit='innovation' needs innovation_bound, stability=(M, rho) and bounds: how far an innovation may "
                "move, how fast that dies out, and within what the columns lie."
            )
        _positive("innovation_bound", self.innovation_bound)
        if len(self.stability) != 2 or not (self.stability[0] >= 1.0 and 0.0 <= self.stability[1] < 1.0):
            raise OptionError(f"stability must be (M, rho) with M >= 1 and 0 <= rho < 1, got {self.stability!r}.")

    def mu_by_purpose(self, purposes: Sequence[str]) -> dict[str, float]:
        """The strength ``mu`` of each purpose, ``mu_total sqrt(share / sum of shares)``.

        Parameters
        ----------
        purposes : sequence of str
            Those that the fit needs, of "scale", "rank", "whitening", "start", "rounds", "clip".

        Returns
        -------
        dict of str to float
            Their squares add up to the square of ``gaussian_mu(epsilon, delta)``.
        """
        shares = {**DEFAULT_SHARES, **(self.shares or {})}
        total = gaussian_mu(self.epsilon, self.delta)
        whole = sum(shares[name] for name in purposes)
        return {name: total * math.sqrt(shares[name] / whole) for name in purposes}

    def to_options(self) -> dict[str, Any]:
        """The options as JSON-able values, from which ``Privacy(**options)`` makes the same."""
        options = asdict(self)
        for name in ("epsilon", "delta", "kappa", "clip"):
            options[name] = options[name] if isinstance(options[name], str) else float(options[name])
        for name in ("sensitive", "stability"):
            options[name] = None if options[name] is None else list(options[name])
        if options["ledger"] is not None:
            options["ledger"] = os.fspath(options["ledger"])
        if isinstance(self.bounds, Mapping):
            options["bounds"] = {name: [float(value) for value in pair] for name, pair in self.bounds.items()}
        elif self.bounds is not None:
            options["bounds"] = [float(value) for value in self.bounds]
        return options

    def column_bounds(self, columns: Sequence[str]) -> tuple[FloatArray, FloatArray] | None:
        """Lower and upper bounds (d,) by column; None where none were declared.

        Raises
        ------
        OptionError
            A column without bounds, or bounds of an unknown one.
        """
        if self.bounds is None:
            return None
        if not isinstance(self.bounds, Mapping):
            low, high = _bound("all columns", self.bounds)
            return np.full(len(columns), low), np.full(len(columns), high)
        missing = [name for name in columns if name not in self.bounds]
        unknown = [name for name in self.bounds if name not in columns]
        if missing or unknown:
            which = f"none for column {missing[0]!r}" if missing else f"some for {unknown[0]!r}, which is no column"
            raise OptionError(f"bounds has {which}: give one pair for each of {', '.join(map(repr, columns))}.")
        pairs = np.array([_bound(name, self.bounds[name]) for name in columns])
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    def sensitive_columns(self, columns: Sequence[str]) -> AnyArray:
        """Positions of the protected columns.

        Raises
        ------
        OptionError
            An unknown name in ``sensitive``.
        """
        if self.sensitive is None:
            return np.arange(len(columns))
        for name in self.sensitive:
            if name not in columns:
                raise OptionError(
                    f"sensitive names {name!r}, which is no column: they are {', '.join(map(repr, columns))}."
                )
        return np.array(sorted({list(columns).index(name) for name in self.sensitive}))

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


def add_noise(
    values: FloatArray, sigma: float, privacy: Privacy, random_state: int | None, client: str, index: int
) -> FloatArray:
    """``values + N(0, sigma^2)`` entry by entry, by the sampler that the options name.

    Parameters
    ----------
    values : ndarray
    sigma : float
        Positive and finite.
    privacy, random_state, client, index
        As in :func:`noise_generator`.

    Raises
    ------
    OptionError, OptionTypeError
        When ``sigma`` is not a positive finite number; ``noise="opendp"`` without that library.
    """
    scale = _positive("sigma", sigma)
    if privacy.noise == "opendp":
        return _opendp_noise(values, scale)
    return values + scale * noise_generator(privacy, random_state, client, index).standard_normal(values.shape)


def _opendp_noise(values: FloatArray, sigma: float) -> FloatArray:
    try:
        import opendp.prelude as dp
        from opendp.mod import GLOBAL_FEATURES, disable_features, enable_features
    except ImportError as error:
        raise OptionError("noise='opendp' needs OpenDP: pip install 'fedvar_fast[opendp]'") from error
    # The library asks for this switch, which is the process's: put back as it was found.
    before = "contrib" in GLOBAL_FEATURES
    enable_features("contrib")
    try:
        space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
        measurement = dp.m.make_gaussian(*space, scale=sigma)
    finally:
        if not before:
            disable_features("contrib")
    return np.array(measurement(values.ravel().tolist()), dtype=np.float64).reshape(values.shape)


def _known(name: str, value: object, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise OptionError(f"{name}={value!r} is unknown: it is one of {', '.join(map(repr, known))}.")


def _bound(name: str, pair: object) -> tuple[float, float]:
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise OptionTypeError(f"bounds of {name} must be a pair (lower, upper), got {pair!r}.")
    low, high = (real_option(f"bounds of {name}", value) for value in pair)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(f"bounds of {name} must be finite, the lower below the upper, got ({low}, {high}).")
    return low, high


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
