"""Stage I: the shared low-rank part, by Riemannian gradient rounds or in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from fedvar_fast import kernels
from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.lowrank import FixedRank, TangentVector
from fedvar_fast.moments import LaggedMoments, check_order
from fedvar_fast.solvers.whitening import Whitener

__all__ = [
    "LowRankComponent",
    "LowRankState",
    "clipped_gradient_pair",
    "exact_reduced_rank",
    "gradient_pair",
    "weighted_sum",
]


def gradient_pair(point: FixedRank, moments: LaggedMoments) -> tuple[TangentVector, float]:
    """``P_T(G)`` of one client's gradient ``G = (2/T)(A S - C)``, and its loss, from thin products only.

    Returns
    -------
    TangentVector, float
        The pair ``(R, B)``, and ``(tr Q - 2<A, C> + <A S, A>)/T``.
    """
    row_part, column_part, core, yxv = kernels.gradient_pair(
        point.u, point.s, point.v, moments.xx, moments.yx, moments.n_rows
    )
    inner = float(np.sum(point.u * point.s * yxv))
    fitted = float(point.s @ (np.diag(core) * point.s)) if point.rank else 0.0
    # <A S, A> = sum_ij s_i s_j (U'U)_ij (V'SV)_ij, and U'U = I.
    loss = (float(np.trace(moments.yy)) - 2.0 * inner + fitted) / moments.n_rows
    return TangentVector(row_part, column_part), loss


def clipped_gradient_pair(
    point: FixedRank,
    y: AnyArray,
    center: FloatArray,
    scale: FloatArray,
    order: int,
    clip_norm: float,
    n_jobs: int | None = None,
    whitener: Whitener | None = None,
    row_squares: FloatArray | None = None,
) -> tuple[TangentVector, int, int]:
    """One client's projected gradient with each row's share clipped: ``(2/T) sum_t min(1, c/||H_t||_F) H_t``.

    ``H_t = P_T((A x_t - z_t) x_t')``, ``z = (y - center) / scale``, ``x_t = [z_{t-1}; ...; z_{t-p}]``. With an
    infinite `clip_norm` it is `gradient_pair` of the moments of z. The answer does not depend on the threads.

    Parameters
    ----------
    point : FixedRank
        ``A``, of shape (d, pd).
    y : ndarray, shape (T_raw, d)
        The raw series. Rows that need a missing (or infinite) value are left out.
    center, scale : ndarray, shape (d,)
    order : int
        Lags ``p``.
    clip_norm : float
        ``c``, at least 0, may be infinite.
    n_jobs : int, optional
        Threads; every core by default.
    whitener : Whitener, optional
        The point is ``B`` in its coordinates, and so is the pair: ``H_t = P_T((B w_t - z_t) w_t')``, ``w_t = P x_t``.
    row_squares : ndarray, shape (T_raw - p,), optional
        ``||w_t||^2`` where they are known already (`Whitener.row_squares`).

    Returns
    -------
    TangentVector, int, int
        The pair ``(R, B)``, the number of rows with ``||H_t|| <= c``, the number of usable rows ``T``.

    Raises
    ------
    OptionError
        A negative clipping norm, a scale that is not positive, a point of another shape.
    DataError
        Fewer than ``order + 1`` rows.
    DataTypeError
        Values that are no numbers.
    """
    order, rows = check_order(order), np.asarray(y)
    if rows.dtype.kind not in "fiub":
        raise DataTypeError(f"a series holds real numbers, not {rows.dtype}")
    if rows.ndim != 2 or len(rows) <= order:
        raise DataError(f"a series of shape {rows.shape} is no table of at least {order + 1} rows, for order {order}")
    dim = rows.shape[1]
    if point.shape != (dim, order * dim):
        raise OptionError(f"a point of shape {point.shape} does not fit {dim} variables and order {order}")
    center, scale = np.asarray(center, dtype=np.float64), np.asarray(scale, dtype=np.float64)
    if center.shape != (dim,) or not np.isfinite(center).all():
        raise OptionError(f"center must be {dim} finite numbers, one a variable")
    if scale.shape != (dim,) or not (np.isfinite(scale) & (scale > 0)).all():
        raise OptionError(f"scale must be {dim} finite positive numbers, one a variable")
    if not clip_norm >= 0:
        raise OptionError(f"clip_norm={clip_norm!r} is not a norm: give a number, 0 or more, infinity allowed")
    right = point.v
    with kernels.one_blas_thread():
        if whitener is not None:
            right = np.ascontiguousarray(whitener.times(np.ascontiguousarray(point.v.T)).T)
            row_squares = whitener.row_squares(rows, center, scale, order) if row_squares is None else row_squares
        row_part, column_part, n_unclipped, n_rows = kernels.clipped_gradient_pair(
            rows, center, scale, order, point.u, point.s, right, clip_norm, kernels.resolve_n_jobs(n_jobs), row_squares
        )
        if whitener is not None:
            row_part = whitener.times(row_part)
    return TangentVector(row_part, column_part), n_unclipped, n_rows


def weighted_sum(pairs: list[TangentVector], weights: FloatArray) -> TangentVector:
    """``sum_k w_k Z_k`` of vectors of one tangent space, in the order given."""
    total = pairs[0] * float(weights[0])
    for pair, weight in zip(pairs[1:], weights[1:], strict=True):
        total = total + pair * float(weight)
    return total


@dataclass(frozen=True)
class LowRankState:
    """Where Stage I stands.

    Attributes
    ----------
    point : FixedRank
        The iterate ``A_0``.
    n_rounds : int
        Rounds done.
    change : float
        ``step ||Z||_F / ||A_0||_F`` of the last round, infinite before the first.
    """

    point: FixedRank
    n_rounds: int = 0
    change: float = float("inf")


@dataclass(frozen=True)
class LowRankComponent:
    """The shared low-rank part as a component: message from a client, aggregate and step at the server.

    Minimises ``sum_k w_k l_k(A) + ridge ||A||_F^2`` over matrices of rank r, with
    ``A+ = SVD_r(A - step (P_T(sum_k w_k G_k) + 2 ridge A))``.

    Attributes
    ----------
    step : float
    ridge : float
    """

    step: float
    ridge: float = 0.0

    def message(self, moments: LaggedMoments, state: LowRankState) -> tuple[TangentVector, float]:
        """A client's projected gradient ``(R, B)``, ``r (d + pd)`` numbers, and its loss."""
        return gradient_pair(state.point, moments)

    def aggregate(self, messages: list[TangentVector], weights: FloatArray) -> TangentVector:
        """``sum_k w_k Z_k``: averaging pairs averages projections."""
        return weighted_sum(messages, weights)

    def total_gradient(self, state: LowRankState, gradient: TangentVector) -> TangentVector:
        """The projected gradient with the ridge's own part, ``2 ridge A``, which only the server adds."""
        if not self.ridge:
            return gradient
        point = state.point
        # A lies in its own tangent space: U'A = diag(s) V', (I - UU')A = 0.
        own = TangentVector(point.s[:, None] * point.v.T, np.zeros_like(gradient.column_part))
        return gradient + 2.0 * self.ridge * own

    def advance(self, state: LowRankState, gradient: TangentVector) -> LowRankState:
        """The next iterate."""
        gradient = self.total_gradient(state, gradient)
        following = state.point.retract(gradient, self.step)
        length = float(np.linalg.norm(state.point.s))
        change = self.step * gradient.norm() / length if length > 0 else float("inf")
        return LowRankState(following, state.n_rounds + 1, change)


def exact_reduced_rank(xx: FloatArray, yx: FloatArray, rank: int, ridge: float = 0.0) -> FixedRank:
    """``argmin tr(A (S + ridge I) A') - 2 <A, C>`` over matrices of rank `rank`: ridge reduced-rank regression.

    With ``S + ridge I = L L'``: ``A = SVD_r(C L^-T) L^-1`` (Reinsel and Velu 1998, section 2.3). Where ``S`` is
    singular and there is no ridge, the pseudo-inverse root takes the place of ``L^-1``: the minimum-norm answer.

    Parameters
    ----------
    xx, yx : ndarray, shapes (pd, pd), (d, pd)
        Weighted means of ``S_k`` and ``C_k`` (per row).
    rank : int
    ridge : float
        In units of `xx`.

    Returns
    -------
    FixedRank

    Raises
    ------
    OptionError
        A rank above ``min(d, pd)``, a negative ridge.
    """
    if not (np.isfinite(ridge) and ridge >= 0):
        raise OptionError(f"ridge={ridge!r} is not a penalty: give a finite number, 0 or more")
    if rank == 0:
        return FixedRank.zero(*yx.shape)
    with kernels.one_blas_thread():
        whitened_to_plain, whitened = _whiten(xx, yx, ridge)
        low_rank = FixedRank.from_dense(whitened, rank)
        q, r = kernels.thin_qr(whitened_to_plain(low_rank.v))
        u, s, vt = kernels.thin_svd((low_rank.u * low_rank.s) @ r.T)
        k = low_rank.rank
        return FixedRank(np.ascontiguousarray(u[:, :k]), s[:k].copy(), np.ascontiguousarray(q @ vt[:k].T))


def _whiten(xx: FloatArray, yx: FloatArray, ridge: float):  # type: ignore[no-untyped-def]  # a closure and an array
    """``W`` with ``W (S + ridge I) W' = I`` (on the range): the map ``V -> W'V``, and ``C W'``."""
    size = len(xx)
    regular = xx + ridge * np.eye(size)
    # Below this the directions are rounding: squared, they would swamp everything else.
    floor = size * np.finfo(np.float64).eps * max(float(np.trace(regular)), np.finfo(np.float64).tiny)
    try:
        lower = scipy.linalg.cholesky(regular, lower=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        lower = None
    if lower is not None and float(np.min(np.diag(lower))) ** 2 > floor:
        whitened = scipy.linalg.solve_triangular(lower, yx.T, lower=True, check_finite=False).T

        def back(v: FloatArray) -> FloatArray:
            return scipy.linalg.solve_triangular(lower, v, lower=True, trans="T", check_finite=False)

        return back, np.ascontiguousarray(whitened)
    values, vectors = np.linalg.eigh(regular)
    kept = values > floor
    root = vectors[:, kept] / np.sqrt(values[kept])
    # Padded back to pd columns, so that any rank up to min(d, pd) stays a legal question.
    full = np.zeros((size, size))
    full[:, : root.shape[1]] = root
    return (lambda v: full @ v), yx @ full
