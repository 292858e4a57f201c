"""Coordinates in which Stage I is well conditioned: ``B = A P^{-1}``, ``w = P x``, ``P`` close to ``(S/T)^{-1/2}``.

In them the loss of ``B`` has second moments ``P (S/T) P``, near the identity, so that rounds of step 1/2 are nearly
Newton's; the rank of ``A`` and of ``B = A P^{-1}`` is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.exceptions import DataError, OptionError
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments

__all__ = ["PRECONDITIONERS", "Whitener", "whitener"]

PRECONDITIONERS = ("full", "nystrom", "diagonal")

#: Eigenvalues below this share of the largest are raised to it: beyond it nothing but rounding is amplified.
_RELATIVE_FLOOR = 1e-9
#: Regressor rows whose whitened norms are made at a time, in numbers.
_BLOCK_NUMBERS = 2**20


@dataclass(frozen=True)
class Whitener:
    """``P = Q diag(inside) Q' + diag(outside) (I - Q Q')``, symmetric and positive definite.

    Attributes
    ----------
    basis : ndarray, shape (pd, k)
        ``Q``, orthonormal columns; k = pd for a full one, 0 for a diagonal one.
    inside : ndarray, shape (k,)
    outside : ndarray, shape (pd,)
        One number repeated wherever ``0 < k < pd``, so that P stays symmetric; of no effect where k = pd.
    """

    basis: FloatArray
    inside: FloatArray
    outside: FloatArray

    @property
    def norm(self) -> float:
        """``||P||_op``."""
        values = self.inside if self.basis.shape[1] == len(self.outside) else np.append(self.inside, self.outside)
        return float(values.max())

    def times(self, matrix: FloatArray) -> FloatArray:
        """``M P`` of a matrix (m, pd)."""
        return self._spectral(matrix, self.inside, self.outside)

    def inverse_times(self, matrix: FloatArray) -> FloatArray:
        """``M P^{-1}``."""
        return self._spectral(matrix, 1.0 / self.inside, 1.0 / self.outside)

    def _spectral(self, matrix: FloatArray, inside: FloatArray, outside: FloatArray) -> FloatArray:
        if self.basis.shape[1] == 0:
            return np.asarray(matrix * outside)
        along = matrix @ self.basis
        if self.basis.shape[1] == len(outside):
            return np.asarray((along * inside) @ self.basis.T)
        return np.asarray(outside * matrix + (along * (inside - outside[0])) @ self.basis.T)

    def whitened(self, moments: LaggedMoments, ridge: float = 0.0) -> LaggedMoments:
        """Moments of ``w = P x``; with a ridge those of a loss that holds ``ridge ||A||_F^2`` already."""
        xx = moments.xx
        if ridge:
            xx = xx + moments.n_rows * ridge * np.eye(len(xx))
        half = self.times(np.ascontiguousarray(xx))
        both = self.times(np.ascontiguousarray(half.T))
        return replace(moments, xx=0.5 * (both + both.T), yx=self.times(moments.yx))

    def from_whitened(self, point: FixedRank) -> FixedRank:
        """``A = B P`` in thin factors."""
        return _rotated(point, self.times(np.ascontiguousarray((point.v * point.s).T)))

    def to_whitened(self, point: FixedRank) -> FixedRank:
        """``B = A P^{-1}`` in thin factors."""
        return _rotated(point, self.inverse_times(np.ascontiguousarray((point.v * point.s).T)))

    def row_squares(self, y: AnyArray, center: FloatArray, scale: FloatArray, order: int) -> FloatArray:
        """``||P x_t||^2`` for the responses t = p .. T-1 of a raw series, NaN where a lag is missing.

        Parameters
        ----------
        y : ndarray, shape (T, d)
        center, scale : ndarray, shape (d,)
        order : int

        Returns
        -------
        ndarray, shape (T - p,)
        """
        squares = np.empty(len(y) - order)
        for start, x in _regressors(y, center, scale, order):
            white = self.times(x)
            squares[start : start + len(x)] = np.einsum("ij,ij->i", white, white)
        return squares


def whitener(xx_mean: FloatArray, kind: str, *, floor: float = 0.0, sketch_size: int | None = None) -> Whitener:
    """The whitener of second moments ``S/T``.

    Parameters
    ----------
    xx_mean : ndarray, shape (pd, pd)
        ``S/T``, or a noisy version of it, symmetric.
    kind : {"full", "nystrom", "diagonal"}
        ``(S/T)^{-1/2}`` itself; that of a randomised Nystroem approximation (Frangella, Tropp and Udell 2023), one
        number on what it leaves out; that of the diagonal.
    floor : float
        Eigenvalues (diagonal entries) are raised to it.
    sketch_size : int, optional
        Of the Nystroem approximation, ``min(pd, 10 + pd / 4)`` by default.

    Raises
    ------
    OptionError
        An unknown kind, a sketch size outside ``1 .. pd``.
    DataError
        Moments without any variation.
    """
    width = len(xx_mean)
    diagonal = np.diag(xx_mean)
    lowest = max(floor, _RELATIVE_FLOOR * float(diagonal.max(initial=0.0)))
    if not lowest > 0:
        raise DataError("every variable of every client is constant: there is nothing to whiten")
    if kind == "diagonal":
        return Whitener(np.zeros((width, 0)), np.zeros(0), 1.0 / np.sqrt(np.maximum(diagonal, lowest)))
    if kind == "full":
        values, basis = np.linalg.eigh(xx_mean)
        return Whitener(basis, 1.0 / np.sqrt(np.maximum(values, lowest)), np.ones(width))
    if kind != "nystrom":
        raise OptionError(f"precondition={kind!r} is unknown: it is one of {', '.join(map(repr, PRECONDITIONERS))}")
    size = min(width, 10 + width // 4) if sketch_size is None else sketch_size
    if not 0 < size <= width:
        raise OptionError(f"sketch_size={size!r} is outside 1..{width}, the number of regressors")
    basis, values = _nystroem(xx_mean, size)
    inside = 1.0 / np.sqrt(np.maximum(values, lowest))
    rest = float(max(values[-1], lowest))
    return Whitener(basis, inside, np.full(width, 1.0 / np.sqrt(rest)))


def _nystroem(matrix: FloatArray, size: int) -> tuple[FloatArray, FloatArray]:
    """Eigenvectors (pd, k) and values, descending, of ``(S W)(W'S W)^{-1}(S W)'``, W orthonormal and fixed."""
    sketch = np.linalg.qr(np.random.default_rng(0).standard_normal((len(matrix), size)))[0]
    # A shift of rounding size keeps the Cholesky factor real; it is taken back from the values.
    shift = np.finfo(np.float64).eps * float(np.linalg.norm(matrix)) * np.sqrt(len(matrix))
    product = matrix @ sketch + shift * sketch
    core, basis = np.linalg.eigh(sketch.T @ product)
    root = (basis / np.sqrt(np.maximum(core, shift))) @ basis.T
    left, values, _ = np.linalg.svd(product @ root, full_matrices=False)
    return left, np.maximum(values**2 - shift, 0.0)


def _rotated(point: FixedRank, rows: FloatArray) -> FixedRank:
    """``U M`` of orthonormal ``U`` (d, r) and ``M`` (r, pd) as a point."""
    left, s, vt = np.linalg.svd(rows, full_matrices=False)
    return FixedRank(point.u @ left, s, np.ascontiguousarray(vt.T))


def _regressors(y: AnyArray, center: FloatArray, scale: FloatArray, order: int) -> Iterator[tuple[int, FloatArray]]:
    """Blocks of scaled regressor rows ``[z_{t-1}, ..., z_{t-p}]`` and the number of the first response in each."""
    block = max(1, _BLOCK_NUMBERS // (order * y.shape[1]))
    for start in range(0, len(y) - order, block):
        count = min(block, len(y) - order - start)
        z = (np.asarray(y[start : start + count + order], dtype=np.float64) - center) / scale
        yield start, np.hstack([z[order - lag : order - lag + count] for lag in range(1, order + 1)])
