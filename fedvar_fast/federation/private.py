"""Stage I with a guarantee for the whole transcript: whitening, start and a few clipped rounds, all noised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.federation import server
from fedvar_fast.federation.curator import Curator
from fedvar_fast.federation.worth import Worth
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.solvers.riemannian import weighted_sum
from fedvar_fast.solvers.whitening import Whitener, whitener

__all__ = ["DEFAULT_ROUNDS", "MARGIN", "PrivateFit", "fit_private"]

#: Rounds of a private fit: in whitened coordinates more of them do not lower the noise, they only share it out.
DEFAULT_ROUNDS = 8
#: Eigenvalues of the noisy second moments are raised to this multiple of the noise's operator norm.
_FLOOR = 2.0
#: Where the clipping norm settles: this share of rows is not clipped; and how fast.
_QUANTILE = 0.5
_QUANTILE_STEP = 1.0
#: What tells clients apart must be so many times the noise: both are estimates.
MARGIN = 1.25
#: Rounds of full length before those that average.
_NEWTON_ROUNDS = 2

#: Called after every round with (rounds done, rounds planned).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PrivateFit:
    """What the server has when the rounds are over.

    Attributes
    ----------
    point : FixedRank
        ``A_0`` in scaled units.
    n_rounds : int
    whitener : Whitener
    whitened : FixedRank
        ``B``.
    clip_norms : list of float
        Round by round.
    changes : list of float
    noise, signal : float
        Root of the expected ``||N||_F^2`` that the noise of the rounds makes in ``B``, and
        ``(||B||_F^2 - noise^2)^(1/2)``, 0 where that is negative.
    error, apart : float
        What privacy adds to ``||A - A_0||_F^2``, and how far clients alone are from what all of them find: see `Worth`.
    """

    point: FixedRank
    n_rounds: int
    whitener: Whitener
    whitened: FixedRank
    clip_norms: list[float]
    changes: list[float]
    noise: float
    signal: float
    error: float
    apart: float

    @property
    def informative(self) -> bool:
        """Whether the shared part is worth its noise: more signal than noise, and nearer to ``A_0`` than clients alone.

        What tells a client's own part from the shared one without noise is its sampling error and its own deviation:
        the shared part is the nearer one to ``A_0`` where that is more than the noise.
        """
        return self.signal > self.noise and self.apart > MARGIN * self.error


def fit_private(
    curators: list[Curator],
    rank: int,
    precondition: str,
    n_rounds: int,
    start: FloatArray | None = None,
    progress: Progress | None = None,
) -> PrivateFit:
    """Whitening, spectral start and clipped rounds; what the server does is post-processing of releases.

    Rounds in whitened coordinates with steps ``1/2, 1/2, 1/2, 1/4, 1/6, ...``: the first ones are Newton's and forget
    the start, the later ones average, so that the noise of all of them counts once.

    Parameters
    ----------
    curators : list of Curator
        In the order of their names.
    rank : int
    precondition : {"full", "nystrom", "diagonal"}
    n_rounds : int
    start : ndarray, shape (d, pd), optional
        A public start in scaled units, finite; by default the spectral one, released with noise.
    progress : callable, optional

    Raises
    ------
    OptionError
        A zero start.
    BudgetError
        A client whose ledger has not enough left.
    """
    rows = np.array([one.n_responses for one in curators], dtype=np.float64)
    weights = rows / rows.sum()
    dim, width = curators[0].values.shape[1], curators[0].order * curators[0].values.shape[1]
    x_norm, y_norm = math.sqrt(width), math.sqrt(dim)
    second = sum(w * one.release_second_moment(x_norm) for w, one in zip(weights, curators, strict=True))
    spread = _pooled(weights, [one.neighbours.second_moment(x_norm) / one.strength["whitening"] for one in curators])
    white = whitener(second, precondition, floor=_FLOOR * spread * math.sqrt(2.0 * width))
    started = 0.0
    if start is None:
        cross = sum(w * one.release_cross_moment(x_norm, y_norm) for w, one in zip(weights, curators, strict=True))
        point = FixedRank.from_dense(np.ascontiguousarray(white.times(np.ascontiguousarray(cross))), rank)
        sigma = _pooled(
            weights, [one.neighbours.cross_moment(x_norm, y_norm) / one.strength["start"] for one in curators]
        )
        started = sigma**2 * float(np.sum(white.times(np.eye(width)) ** 2)) / width
    else:
        point = white.to_whitened(FixedRank.from_dense(start, rank))
    server.require_tangent_space(point)
    return _rounds(curators, weights, point, white, _contraction(white, second), started, n_rounds, progress)


def _contraction(white: Whitener, second: FloatArray) -> float:
    """Mean eigenvalue of ``P max(S~, 0) P``: how much of what is wrong a Newton step takes away on average."""
    values, basis = np.linalg.eigh(second)
    half = white.times(np.ascontiguousarray((basis * np.sqrt(np.maximum(values, 0.0))).T))
    return min(1.0, float(np.sum(half**2)) / len(second))


def private_rank(votes: list[tuple[Curator, int | None]], most: int) -> int:
    """The rank with most noisy votes: each client sends its vote as one of 1 .. most in a vector with noise.

    A client without a vote (None) sends noise alone.
    """
    total = np.zeros(most)
    for one, vote in votes:
        ballot = np.zeros(most)
        if vote is not None:
            ballot[min(vote, most) - 1] = 1.0
        total += one.send("rank vote", ballot, one.neighbours.vote(), one.strength["rank"])
    return int(np.argmax(total)) + 1


def _pooled(weights: FloatArray, sigmas: list[float]) -> float:
    """Standard deviation of the weighted sum of independent noises."""
    return float(np.sqrt(np.sum((weights * np.array(sigmas)) ** 2)))


def _rounds(
    curators: list[Curator],
    weights: FloatArray,
    point: FixedRank,
    white: Whitener,
    contraction: float,
    variance: float,
    n_rounds: int,
    progress: Progress | None,
) -> PrivateFit:
    """`variance` is that of a coordinate of the start, by its noise alone; it is followed through the rounds."""
    dim, width = point.shape
    squares = [one.row_squares(white) for one in curators]
    adaptive = curators[0].privacy.clip == "adaptive"
    clip_norm = math.sqrt(point.rank * (dim + width)) if adaptive else float(curators[0].privacy.clip)
    worth = Worth(curators, weights, white)
    clip_norms: list[float] = []
    changes: list[float] = []
    for number in range(1, n_rounds + 1):
        pairs, shares = [], []
        for one, square in zip(curators, squares, strict=True):
            mu = one.strength["rounds"] / math.sqrt(n_rounds)
            count_mu = one.strength["clip"] / math.sqrt(n_rounds) if adaptive else None
            pair, share = one.release_pair(number, point, white, square, clip_norm, mu, count_mu)
            pairs.append(pair)
            shares.append(share)
        step = 0.5 / max(1, number - _NEWTON_ROUNDS)
        total = weighted_sum(pairs, weights)
        sigmas = [
            one.gradient_sensitivity(point, white, clip_norm) * math.sqrt(n_rounds) / one.strength["rounds"]
            for one in curators
        ]
        sigma = _pooled(weights, sigmas)
        if number > _NEWTON_ROUNDS:
            worth.take(point, pairs, total, sigmas)
        variance = (1.0 - 2.0 * step * contraction) ** 2 * variance + (step * sigma) ** 2
        length = float(np.linalg.norm(point.s))
        changes.append(step * total.norm() / length if length > 0 else math.inf)
        point = point.retract(total, step)
        clip_norms.append(clip_norm)
        if adaptive:
            inside = float(np.clip(weights @ np.array(shares), 0.0, 1.0))
            clip_norm *= math.exp(-_QUANTILE_STEP * (inside - _QUANTILE))
        if progress is not None:
            progress(number, n_rounds)
    noise = math.sqrt(point.rank * (dim + width - point.rank) * variance)
    signal = math.sqrt(max(float(np.sum(point.s**2)) - noise**2, 0.0))
    return PrivateFit(
        white.from_whitened(point).sign_fixed(), n_rounds, white, point, clip_norms, changes, noise, signal,
        worth.error(point, variance), worth.apart(point),
    )  # fmt: skip
