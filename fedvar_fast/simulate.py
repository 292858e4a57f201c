"""Simulated panels with known coefficients: the design of the paper's Section 5, and its variations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.linalg import eigvals
from scipy.optimize import brentq

from fedvar_fast._typing import FloatArray, Seed
from fedvar_fast.exceptions import OptionError, OptionTypeError
from fedvar_fast.panel import Panel

__all__ = ["SimulatedTruth", "simulate_arrays", "simulate_panel"]

_MEASURES = ("operator_norm", "spectral_radius")
# Longer series would run beyond the dates that all readers of a panel understand.
_MOST_DATES = 2000
# What a stream of random numbers is for; part of its key.
_SHARED, _DEVIATION, _INNOVATION = 0, 1, 2


@dataclass(frozen=True)
class SimulatedTruth:
    """What a simulated panel was made from; the arrays are read-only.

    Parameters
    ----------
    A0 : (d, p*d) array
        The shared coefficients ``[A_{0,1} ... A_{0,p}]``.
    deltas : dict of str to (d, p*d) array
        The deviation of each client.
    coef : dict of str to (d, p*d) array
        ``A_k = A_0 + Delta_k``.
    innovation_cov : (d, d) array
        Covariance of the innovations.
    scale_factor : float
        The common factor that ``A_0`` and every ``Delta_k`` were multiplied by at the end.
    seed : int
        ``random_state=seed`` with the same arguments makes the same panel again, whatever ``random_state``
        was.
    """

    A0: FloatArray
    deltas: dict[str, FloatArray]
    coef: dict[str, FloatArray]
    innovation_cov: FloatArray
    scale_factor: float
    seed: int


def simulate_panel(
    n_clients: int = 5,
    dim: int = 50,
    order: int = 1,
    n_rows: int | Sequence[int] | Mapping[str, int] = 400,
    rank: int = 2,
    *,
    deviation_ratio: float = 0.2,
    nonzeros_per_row: int | None = None,
    stability: float = 0.7,
    stability_measure: str = "operator_norm",
    innovation_cov: npt.ArrayLike | None = None,
    burn_in: int = 200,
    columns: Sequence[str] | None = None,
    clients: Sequence[str] | None = None,
    start: str = "2000-01-01",
    freq: str = "MS",
    random_state: Seed = None,
) -> tuple[Panel, SimulatedTruth]:
    """Simulate a panel of vector autoregressions that share a low-rank part.

    ``y_{k,t} = A_k x_{k,t} + e_{k,t}``, ``A_k = c (A_0 + Delta_k)``:

    1. ``A_0`` (d x pd): independent N(0, 1) entries, truncated to ``rank`` by its singular values.
    2. ``Delta_k``: independent N(0, 1) entries (all of them, or ``nonzeros_per_row`` at random places in each
       row), scaled to ``||Delta_k||_F = deviation_ratio ||A_0||_F`` (``= deviation_ratio`` when ``rank=0``).
    3. One factor ``c`` for all clients, which keeps ``A_0`` common and every ratio as it is, such that the
       largest ``stability_measure`` over the clients equals ``stability``.
    4. ``burn_in`` rows from zero are thrown away.

    Parameters
    ----------
    n_clients, dim, order, rank : int
        K, d, p and r; ``0 <= rank <= d``.
    n_rows : int, sequence or mapping
        Rows of each client, at least ``order + 2``: one number, one per client in order, or by client name.
    deviation_ratio : float, default 0.2
        ``||Delta_k||_F / ||A_0||_F``; 0 makes the clients equal.
    nonzeros_per_row : int or None
        Exactly so many nonzero entries in each row of ``Delta_k``; None: all of them.
    stability : float in (0, 1)
        Largest value of the measure over the clients.
    stability_measure : {"operator_norm", "spectral_radius"}
        ``||A_k||_op``, or the spectral radius of the companion matrix.
    innovation_cov : (d, d) array or None
        Covariance of the innovations of every client; None: the identity.
    burn_in : int, default 200
        Rows before the sample.
    columns, clients : sequence of str or None
        Names; by default ``y1 ... yd`` and ``client_1 ... client_K``.
    start, freq : str
        First date and pandas frequency of the time column ``date``, the same for every client. When a client
        has more than 2,000 rows, ``date`` counts 1, 2, ... for all of them instead.
    random_state : int, numpy.random.Generator or None
        Seed; a generator is advanced, None is fresh. Each client's streams belong to its *name*: the order of
        the clients does not matter, a longer sample continues a shorter one, and another client changes the
        data of the others only through the factor ``c``, if it is the one with the largest measure.

    Returns
    -------
    panel : Panel
        The data.
    truth : SimulatedTruth
        The coefficients behind them.

    Raises
    ------
    OptionError, OptionTypeError
        When an option is out of range or of the wrong type, or the options contradict each other.

    Notes
    -----
    Source: paper, Section 5. There ``Delta_k`` is first scaled into ``||Delta_k||_{0.1}^{0.1} <= 10`` and
    then to the Frobenius ratio. The second scaling undoes the first (both multiply by a number), so only the
    second is done; the ``Delta_k`` of that design are therefore dense. ``nonzeros_per_row`` is there for
    exactly sparse ones.
    """
    arrays, truth = simulate_arrays(
        n_clients,
        dim,
        order,
        n_rows,
        rank,
        deviation_ratio=deviation_ratio,
        nonzeros_per_row=nonzeros_per_row,
        stability=stability,
        stability_measure=stability_measure,
        innovation_cov=innovation_cov,
        burn_in=burn_in,
        clients=clients,
        random_state=random_state,
    )
    names = [f"y{i}" for i in range(1, dim + 1)] if columns is None else _names("columns", columns, dim)
    if "date" in names:
        raise OptionError('columns must not contain "date": this is the name of the time column.')
    times = _times(max(len(series) for series in arrays.values()), start, freq)
    frames = {}
    for client, series in arrays.items():
        frames[client] = pd.DataFrame(series, columns=names)
        frames[client].insert(0, "date", times[: len(series)])
    return Panel.from_frames(frames, time="date"), truth


def simulate_arrays(
    n_clients: int = 5,
    dim: int = 50,
    order: int = 1,
    n_rows: int | Sequence[int] | Mapping[str, int] = 400,
    rank: int = 2,
    *,
    deviation_ratio: float = 0.2,
    nonzeros_per_row: int | None = None,
    stability: float = 0.7,
    stability_measure: str = "operator_norm",
    innovation_cov: npt.ArrayLike | None = None,
    burn_in: int = 200,
    clients: Sequence[str] | None = None,
    random_state: Seed = None,
) -> tuple[dict[str, FloatArray], SimulatedTruth]:
    """The series of :func:`simulate_panel` as plain arrays.

    Parameters
    ----------
    n_clients, dim, order, n_rows, rank, deviation_ratio, nonzeros_per_row, stability, stability_measure, \
innovation_cov, burn_in, clients, random_state
        As in :func:`simulate_panel`.

    Returns
    -------
    arrays : dict of str to (T_k, d) array
        The series by client.
    truth : SimulatedTruth
        The coefficients behind them.

    Raises
    ------
    OptionError, OptionTypeError
        When an option is out of range or of the wrong type, or the options contradict each other.
    """
    for name, value, least in (
        ("n_clients", n_clients, 1),
        ("dim", dim, 1),
        ("order", order, 1),
        ("rank", rank, 0),
    ):
        _whole(name, value, least)
    _whole("burn_in", burn_in, 0)
    _check_structure(dim, order, rank, nonzeros_per_row, deviation_ratio)
    _check_stability(stability, stability_measure)
    default = [f"client_{k}" for k in range(1, n_clients + 1)]
    names = default if clients is None else _names("clients", clients, n_clients)
    lengths = _lengths(n_rows, names, order + 2)
    cov = _covariance(innovation_cov, dim)
    seed = _entropy(random_state)

    shared = _low_rank(_stream(seed, _SHARED), dim, order, rank)
    size = deviation_ratio * (float(np.linalg.norm(shared)) if rank else 1.0)
    deltas = {k: _deviation(_stream(seed, _DEVIATION, k), dim, order, nonzeros_per_row, size) for k in names}
    factor = _common_factor([shared + delta for delta in deltas.values()], stability, stability_measure)
    truth = _truth(shared, deltas, cov, factor, seed)
    root = None if innovation_cov is None else np.asarray(np.linalg.cholesky(cov), dtype=np.float64)
    arrays = {k: _series(truth.coef[k], root, lengths[k], order, burn_in, _stream(seed, _INNOVATION, k)) for k in names}
    return arrays, truth


def _low_rank(rng: np.random.Generator, dim: int, order: int, rank: int) -> FloatArray:
    """Gaussian (d, pd) matrix, cut to its ``rank`` largest singular values."""
    full = rng.standard_normal((dim, dim * order))
    u, s, vt = np.linalg.svd(full, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vt[:rank]


def _deviation(rng: np.random.Generator, dim: int, order: int, nonzeros_per_row: int | None, size: float) -> FloatArray:
    """Gaussian (d, pd) matrix of Frobenius norm ``size``, dense or with so many nonzeros in each row."""
    delta = rng.standard_normal((dim, dim * order))
    if nonzeros_per_row is not None:
        places = rng.permuted(np.tile(np.arange(dim * order), (dim, 1)), axis=1)
        np.put_along_axis(delta, places[:, nonzeros_per_row:], 0.0, axis=1)
    return delta * (size / np.linalg.norm(delta))


def _common_factor(coefs: list[FloatArray], stability: float, measure: str) -> float:
    """The ``c`` with ``max_k measure(c A_k) = stability``."""
    single_lag = coefs[0].shape[0] == coefs[0].shape[1]
    if measure == "spectral_radius" and not single_lag:
        factor = _radius_factor(coefs, stability)
    else:  # the measure is proportional to c
        sizes = [float(np.linalg.norm(a, 2)) if measure == "operator_norm" else _radius(a) for a in coefs]
        factor = stability / max(sizes)
    if measure == "operator_norm" and not single_lag:
        _require_stationary(coefs, factor)
    return factor


def _radius_factor(coefs: list[FloatArray], stability: float) -> float:
    """The factor for several lags, where the radius is not proportional to it.

    The radius of ``c A_k`` is continuous in ``c``, 0 at 0 and unbounded, but for special coefficients not
    monotone. So ``c`` is solved for on the client with the largest radius, and again on another one if that
    has the largest radius then; from the second time on ``c`` only falls. The result is verified.
    """
    factor = 1.0 / max(float(np.linalg.norm(coef, 2)) for coef in coefs)
    while True:
        radii = [_radius(factor * coef) for coef in coefs]
        worst = int(np.argmax(radii))
        if abs(radii[worst] - stability) <= 1e-10 * stability:
            return factor
        factor = _solve_radius(coefs[worst], stability, factor)


def _solve_radius(coef: FloatArray, stability: float, upper: float) -> float:
    """A ``c``, below ``upper`` if possible, with companion radius of ``c * coef`` equal to ``stability``."""
    # Ends: no row is all zero, so the variables hold a feedback loop and the radius is unbounded in c.
    while _radius(upper * coef) <= stability:
        upper *= 2.0
    return float(brentq(lambda c: _radius(c * coef) - stability, 0.0, upper, xtol=1e-14 * upper, rtol=1e-13))


def _radius(coef: FloatArray) -> float:
    """Spectral radius of the companion matrix of ``[A_1 ... A_p]``."""
    dim, width = coef.shape
    companion = np.eye(width, k=-dim)
    companion[:dim] = coef
    return float(np.abs(eigvals(companion, check_finite=False)).max())


def _require_stationary(coefs: list[FloatArray], factor: float) -> None:
    # With several lags an operator norm below one is not enough: A_1 = A_2 = 0.7 has norm 0.99 and explodes.
    largest = max(_radius(factor * coef) for coef in coefs)
    if largest >= 1.0:
        raise OptionError(
            f"A client would not be stationary (companion radius {largest:.3f}): lower stability, or use "
            'stability_measure="spectral_radius".'
        )


def _truth(
    shared: FloatArray, deltas: dict[str, FloatArray], cov: FloatArray, factor: float, seed: int
) -> SimulatedTruth:
    A0 = factor * shared
    scaled = {client: factor * delta for client, delta in deltas.items()}
    coef = {client: A0 + delta for client, delta in scaled.items()}
    for array in (A0, cov, *scaled.values(), *coef.values()):
        array.setflags(write=False)
    return SimulatedTruth(A0, scaled, coef, cov, factor, seed)


def _series(
    coef: FloatArray, root: FloatArray | None, n_rows: int, order: int, burn_in: int, rng: np.random.Generator
) -> FloatArray:
    from fedvar_fast.kernels._jit import (
        simulate_var,
    )  # here, so that importing the package does not import Numba

    dim = len(coef)
    innovations = rng.standard_normal((burn_in + n_rows, dim))
    if root is not None:
        innovations = innovations @ root.T
    path: FloatArray = simulate_var(coef, innovations, np.zeros((order, dim)))
    return path[burn_in:].copy()


def _entropy(random_state: Seed) -> int:
    """One integer that stands for ``random_state``."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(2, np.uint64)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(0, 2**63))
    return _whole("random_state", random_state, 0)


def _stream(seed: int, purpose: int, client: str | None = None) -> np.random.Generator:
    """An independent generator for each purpose and client *name* (a digest: the same in every process)."""
    digest = b"" if client is None else hashlib.sha256(client.encode()).digest()
    key = (purpose, *np.frombuffer(digest, dtype="<u4").tolist())
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _times(n_rows: int, start: str, freq: str) -> pd.Index:
    if n_rows > _MOST_DATES:
        return pd.RangeIndex(1, n_rows + 1)
    try:
        return pd.date_range(start, periods=n_rows, freq=freq)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"start={start!r} and freq={freq!r} make no dates: give a date such as "
            f'"2000-01-01" and a pandas frequency such as "MS" ({error}).'
        ) from error


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionTypeError(f"{name} must be a whole number, got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise OptionError(f"{name} must be at least {least}, got {value}.")
    return int(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}.")
    return float(value)


def _check_structure(dim: int, order: int, rank: int, nonzeros_per_row: int | None, deviation_ratio: float) -> None:
    if rank > dim:
        raise OptionError(f"rank must be at most {dim}, the number of variables, got {rank}.")
    if nonzeros_per_row is not None and _whole("nonzeros_per_row", nonzeros_per_row, 1) > dim * order:
        raise OptionError(f"nonzeros_per_row must be at most {dim * order} (dim * order), got {nonzeros_per_row}.")
    if not 0.0 <= _number("deviation_ratio", deviation_ratio) < np.inf:
        raise OptionError(f"deviation_ratio must be finite and not negative, got {deviation_ratio}.")
    if rank == 0 and deviation_ratio == 0.0:
        raise OptionError("rank=0 with deviation_ratio=0 leaves no dynamics: make one of them positive.")


def _check_stability(stability: float, measure: str) -> None:
    if not 0.0 < _number("stability", stability) < 1.0:
        raise OptionError(f"stability must lie strictly between 0 and 1, got {stability}.")
    if measure not in _MEASURES:
        raise OptionError(f"stability_measure must be one of {', '.join(_MEASURES)}, got {measure!r}.")


def _names(option: str, names: Sequence[str], count: int) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise OptionTypeError(f"{option} must be a list of texts, got {names!r}.")
    if len(names) != count or len(set(names)) != count:
        raise OptionError(f"{option} must be {count} different names, got {list(names)}.")
    return list(names)


def _lengths(n_rows: int | Sequence[int] | Mapping[str, int], names: list[str], least: int) -> dict[str, int]:
    if isinstance(n_rows, Mapping):
        if set(n_rows) != set(names):
            raise OptionError(f"n_rows must name each client once: {', '.join(names)}; got {', '.join(n_rows)}.")
        lengths = dict(n_rows)
    elif isinstance(n_rows, Integral):
        lengths = dict.fromkeys(names, int(n_rows))
    elif not isinstance(n_rows, Sequence | np.ndarray):
        raise OptionTypeError(f"n_rows must be a whole number, a list of them, or a mapping, got {n_rows!r}.")
    else:
        if len(n_rows) != len(names):
            raise OptionError(f"n_rows has {len(n_rows)} entries for {len(names)} clients: give one number for each.")
        lengths = dict(zip(names, n_rows, strict=True))
    return {name: _whole(f"n_rows of {name}", lengths[name], least) for name in names}


def _covariance(innovation_cov: npt.ArrayLike | None, dim: int) -> FloatArray:
    if innovation_cov is None:
        return np.eye(dim)
    cov = np.array(innovation_cov, dtype=np.float64)
    if cov.shape != (dim, dim):
        raise OptionError(f"innovation_cov must have shape ({dim}, {dim}), got {cov.shape}.")
    if not np.isfinite(cov).all() or not np.allclose(cov, cov.T, rtol=1e-10, atol=1e-12):
        raise OptionError("innovation_cov must be finite and symmetric.")
    try:
        np.linalg.cholesky(cov)
    except np.linalg.LinAlgError as error:
        raise OptionError("innovation_cov must be positive definite.") from error
    return cov
