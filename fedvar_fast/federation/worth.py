"""Is a private answer worth its noise? What its error is, and how far apart the clients are, from released quantities.

All squares are those of ``||.||_F`` of matrices ``A`` in scaled units: a tangent vector ``Z = U R + C V'`` at ``B`` is
``Z P`` there, of square ``||R P||^2 + ||C V'P||^2`` (the two are orthogonal).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.federation.curator import Curator
from fedvar_fast.lowrank import FixedRank, TangentVector
from fedvar_fast.solvers.whitening import Whitener

__all__ = ["Worth", "tangent_square"]


def tangent_square(tangent: TangentVector, point: FixedRank, white: Whitener) -> float:
    """``||Z P||_F^2``."""
    rows = white.times(tangent.row_part)
    right = white.times(np.ascontiguousarray(point.v.T))
    return float(np.sum(rows**2) + np.sum((tangent.column_part @ right) ** 2))


@dataclass
class Worth:
    """What the averaging rounds show of it.

    Attributes
    ----------
    curators : list of Curator
    weights : ndarray, shape (K,)
    white : Whitener
    """

    curators: list[Curator]
    weights: FloatArray
    white: Whitener
    _apart: list[float] = field(default_factory=list)
    _common: list[float] = field(default_factory=list)
    _whitener_square: float = field(init=False)

    def __post_init__(self) -> None:
        width = len(self.white.outside)
        self._whitener_square = float(np.sum(self.white.times(np.eye(width)) ** 2))

    def unit(self, point: FixedRank) -> float:
        """Expected ``||N P||_F^2`` of noise of law ``P_T(W)`` with unit variance: ``r ||P||^2 + (d - r) ||V'P||^2``."""
        right = self.white.times(np.ascontiguousarray(point.v.T))
        return point.rank * self._whitener_square + (len(point.u) - point.rank) * float(np.sum(right**2))

    def take(self, point: FixedRank, pairs: list[TangentVector], mean: TangentVector, sigmas: list[float]) -> None:
        """One averaging round's messages, their weighted mean, and the noise in each."""
        unit = self.unit(point)
        pooled = float(np.sum((self.weights * np.array(sigmas)) ** 2))
        total = 0.0
        for pair, weight, own in zip(pairs, self.weights, sigmas, strict=True):
            # Var(N_k - sum w N) = s_k^2 (1 - 2 w_k) + s^2.
            noise = own**2 * (1.0 - 2.0 * float(weight)) + pooled
            total += 0.25 * (tangent_square(pair + (-1.0) * mean, point, self.white) - unit * noise)
        self._apart.append(total / len(pairs))
        self._common.append(0.25 * (tangent_square(mean, point, self.white) - unit * pooled))

    def apart(self, point: FixedRank) -> float:
        """Mean square of the way from what all clients find to what each alone would; infinite if nothing shows it.

        Less what noise in each client's own scale adds to it (that of the centre, which `error` counts from above, is
        left: too much taken away would hide what there is).
        """
        if not self._apart:
            return np.inf
        own = (1.0 - 1.0 / len(self.curators)) * self._scales(point)
        return max(float(np.mean(self._apart)) - own, 0.0)

    def error(self, point: FixedRank, variance: float) -> float:
        """Expected square of the answer's error by noise in rounds, scales and centres, and by a start that is left.

        The shared part carries the mean of all clients' errors of scale and centre, and a client's own scale on the way
        back to its units.

        Parameters
        ----------
        point : FixedRank
            ``B``.
        variance : float
            Of each of its coordinates, by the noise of the rounds.
        """
        late = self._common[len(self._common) // 2 :]
        start = max(float(np.mean(late)), 0.0) if late else 0.0
        share = 1.0 / len(self.curators)
        settled = (1.0 + share) * self._scales(point) + share * self._centers(point)
        return variance * self.unit(point) + settled + start

    def _mean(self, what: str, dim: int) -> FloatArray:
        errors = [np.broadcast_to(np.asarray(getattr(one, what)), dim) for one in self.curators]
        return np.asarray(np.sum([weight * one for weight, one in zip(self.weights, errors, strict=True)], axis=0))

    def _scales(self, point: FixedRank) -> float:
        """With relative errors e of the columns' scales ``A`` becomes ``A + A diag(e) - diag(e) A``."""
        dim, width = point.shape
        mean = self._mean("scale_error", dim)
        square = self.white.from_whitened(point).dense() ** 2
        return float(np.tile(mean, width // dim) @ square.sum(axis=0) + mean @ square.sum(axis=1))

    def _centers(self, point: FixedRank) -> float:
        """A wrong centre is a constant m in every row, which predicts itself: ``(m - A x) x' S^{-1}``, x = [m; ...; m].

        Shrunk by ``1 + x' S^{-1} x``, as a regression does.
        """
        dim, width = point.shape
        mean = self._mean("center_error", dim)
        coef, lags = self.white.from_whitened(point).dense(), width // dim
        inverse = self.white.times(self.white.times(np.eye(width)))
        summed = np.eye(dim) - coef.reshape(dim, lags, dim).sum(axis=1)
        across = inverse.reshape(width, lags, dim).sum(axis=1)
        shrunk = 1.0 + float(mean @ np.diag(across.reshape(lags, dim, dim).sum(axis=0)))
        return float(mean @ np.sum(summed**2, axis=0)) * float(mean @ np.sum(across**2, axis=0)) / shrunk**2
