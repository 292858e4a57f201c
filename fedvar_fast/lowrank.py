"""Matrices of fixed rank in thin factors, and vectors of their tangent spaces: the algebra of Stage I."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedvar_fast import kernels
from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import OptionError

__all__ = ["FixedRank", "TangentVector", "leading_triplets", "randomized_svd", "singular_value_threshold"]

#: Up to this smaller dimension a full decomposition is taken; above it Lanczos, for the leading triplets only.
_FULL_SVD_DIM = 512
#: When power iterations of the randomised decomposition have done their work, and how many there are at the most.
_POWER_TOLERANCE = 1e-11
_MOST_POWER_ITERATIONS = 16


@dataclass(frozen=True)
class TangentVector:
    """``Z = U R + B V'`` at a point ``U diag(s) V'``, with ``U'B = 0``.

    Attributes
    ----------
    row_part : ndarray, shape (r, pd)
        ``R = U' Z``.
    column_part : ndarray, shape (d, r)
        ``B = (I - U U') Z V``.
    """

    row_part: FloatArray
    column_part: FloatArray

    def __add__(self, other: TangentVector) -> TangentVector:
        return TangentVector(self.row_part + other.row_part, self.column_part + other.column_part)

    def __mul__(self, factor: float) -> TangentVector:
        return TangentVector(factor * self.row_part, factor * self.column_part)

    __rmul__ = __mul__

    def norm(self) -> float:
        """Frobenius norm of ``U R + B V'``: the two parts are orthogonal."""
        return float(np.sqrt(np.sum(self.row_part**2) + np.sum(self.column_part**2)))

    @property
    def n_numbers(self) -> int:
        """Numbers in a message that carries it, ``r (d + pd)``."""
        return int(self.row_part.size + self.column_part.size)


@dataclass(frozen=True)
class FixedRank:
    """``A = U diag(s) V'`` with orthonormal columns, s descending.

    Attributes
    ----------
    u, s, v : ndarray, shapes (d, r), (r,), (pd, r)
    """

    u: FloatArray
    s: FloatArray
    v: FloatArray

    @property
    def rank(self) -> int:
        """Number of columns ``r`` (a singular value may still be zero)."""
        return len(self.s)

    @property
    def shape(self) -> tuple[int, int]:
        """``(d, pd)``."""
        return len(self.u), len(self.v)

    @classmethod
    def zero(cls, dim: int, width: int) -> FixedRank:
        """The zero matrix, of rank 0."""
        return cls(np.zeros((dim, 0)), np.zeros(0), np.zeros((width, 0)))

    @classmethod
    def from_dense(cls, matrix: FloatArray, rank: int) -> FixedRank:
        """``SVD_r(matrix)``, the best approximation of that rank."""
        if rank == 0:
            return cls.zero(*matrix.shape)
        return cls(*leading_triplets(matrix, rank))

    def dense(self) -> FloatArray:
        """The matrix itself, (d, pd)."""
        return (self.u * self.s) @ self.v.T

    def project(self, matrix: FloatArray) -> TangentVector:
        """``P_T(G) = U(U'G) + (I - U U')(G V)V'`` of a dense ``G`` (d, pd)."""
        column_part = matrix @ self.v
        return TangentVector(self.u.T @ matrix, column_part - self.u @ (self.u.T @ column_part))

    def embed(self, tangent: TangentVector) -> FloatArray:
        """The dense ``U R + B V'``."""
        return self.u @ tangent.row_part + tangent.column_part @ self.v.T

    def retract(self, tangent: TangentVector, step: float) -> FixedRank:
        """``SVD_r(A - step Z)``, exactly, from thin factors."""
        return FixedRank(*kernels.retract(self.u, self.s, self.v, tangent.row_part, tangent.column_part, step))

    def sign_fixed(self) -> FixedRank:
        """The same matrix with signs chosen so that the largest entry of each left vector is positive."""
        if self.rank == 0:
            return self
        sign = np.sign(self.u[np.argmax(np.abs(self.u), axis=0), np.arange(self.rank)])
        sign[sign == 0] = 1.0
        return FixedRank(self.u * sign, self.s, self.v * sign)


def leading_triplets(matrix: FloatArray, rank: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The `rank` leading singular triplets ``U (d, r), s (r,), V (pd, r)`` to working accuracy.

    Raises
    ------
    OptionError
        When `rank` is above ``min(d, pd)``.
    """
    small = min(matrix.shape)
    if not 0 < rank <= small:
        raise OptionError(f"rank={rank} is outside 1..{small}, the ranks of a matrix of shape {matrix.shape}")
    if small <= _FULL_SVD_DIM or 4 * rank >= small:
        u, s, vt = kernels.thin_svd(matrix)
        return np.ascontiguousarray(u[:, :rank]), s[:rank].copy(), np.ascontiguousarray(vt[:rank].T)
    from scipy.sparse.linalg import svds

    start = np.ones(small) / np.sqrt(small)
    u, s, vt = svds(matrix, k=rank, v0=start, tol=0)
    order = np.argsort(s)[::-1]
    return np.ascontiguousarray(u[:, order]), s[order].copy(), np.ascontiguousarray(vt[order].T)


def randomized_svd(
    a: FloatArray,
    rank: int,
    *,
    n_oversamples: int = 10,
    n_power_iter: int | str = "auto",
    random_state: int | np.random.Generator | None = 0,
    n_jobs: int | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Leading singular triplets by a random sketch (Halko, Martinsson and Tropp 2011), in compiled thin products.

    Parameters
    ----------
    a : ndarray, shape (m, n)
    rank : int
        Triplets wanted, at most ``min(m, n)``.
    n_oversamples : int
        Extra columns of the sketch.
    n_power_iter : "auto" or int
        Power iterations, each re-orthogonalised. ``"auto"``: until no more than 1e-11 of what the oversamples hold
        (squared norms, less than what the approximation leaves out) is to be gained by more of them, at most 16:
        judged by the last gain, and by how fast gains shrink, which the smallest singular value of the sketch beside
        the last one wanted tells.
    random_state : int, Generator or None
        Of the Gaussian sketch; None for fresh entropy.
    n_jobs : int, optional
        Threads; every core by default. The answer does not depend on it.

    Returns
    -------
    U : ndarray, shape (m, rank)
    s : ndarray, shape (rank,)
        Descending.
    Vt : ndarray, shape (rank, n)

    Raises
    ------
    OptionError
        A rank outside ``1 .. min(m, n)``, a negative number of oversamples or iterations, ``n_jobs`` 0.
    """
    matrix = np.asarray(a, dtype=np.float64)
    if matrix.ndim != 2 or not 0 < rank <= min(matrix.shape):
        raise OptionError(f"rank={rank!r} is outside 1..min(m, n) of a matrix of shape {matrix.shape}")
    limit, tol = (_MOST_POWER_ITERATIONS, _POWER_TOLERANCE) if n_power_iter == "auto" else (n_power_iter, -1.0)
    if isinstance(limit, str) or limit < 0 or n_oversamples < 0:
        raise OptionError(
            f"n_oversamples={n_oversamples!r} and n_power_iter={n_power_iter!r} are whole numbers, 0 or more"
        )
    width = min(rank + n_oversamples, *matrix.shape)
    sketch = np.random.default_rng(random_state).standard_normal((matrix.shape[1], width))
    with kernels.one_blas_thread():
        u, s, vt = kernels.randomized_svd(matrix, sketch, int(limit), rank, tol, kernels.resolve_n_jobs(n_jobs))
    return np.ascontiguousarray(u[:, :rank]), s[:rank], vt[:rank]


def singular_value_threshold(
    a: FloatArray, threshold: float, rank_guess: int | None = None, *, random_state: int = 0
) -> FixedRank:
    """``U max(diag(s) - threshold, 0) V'``, the proximal map of ``threshold ||.||_*``.

    Only the part above the threshold is kept. With a guess of its rank a randomised decomposition is tried first,
    and believed only when its smallest value lies below the threshold and the part it left out, bounded by
    ``sqrt(||A||_F^2 - sum s^2)``, does too; otherwise the full decomposition decides.

    Parameters
    ----------
    a : ndarray, shape (m, n)
    threshold : float
        At least 0.
    rank_guess : int, optional
    random_state : int
        Of the sketch.

    Returns
    -------
    FixedRank
    """
    if not threshold >= 0:
        raise OptionError(f"threshold={threshold!r} is negative")
    small = min(a.shape)
    if rank_guess is not None and 4 * (rank_guess + 10) < small:
        u, s, vt = randomized_svd(a, rank_guess + 5, random_state=random_state)
        rest = float(np.sqrt(max(np.sum(a**2) - np.sum(s**2), 0.0)))
        if s[-1] < threshold and rest < threshold:
            return _shrunk(u, s, vt, threshold)
    return _shrunk(*kernels.thin_svd(a), threshold)


def _shrunk(u: FloatArray, s: FloatArray, vt: FloatArray, threshold: float) -> FixedRank:
    kept = int(np.sum(s > threshold))
    return FixedRank(np.ascontiguousarray(u[:, :kept]), s[:kept] - threshold, np.ascontiguousarray(vt[:kept].T))
