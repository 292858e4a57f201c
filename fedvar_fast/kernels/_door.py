"""The compiled kernels behind the same signatures as their NumPy twins: outputs allocated, layout checked."""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray, IntArray
from fedvar_fast.kernels import _admm, _clipped, _coordinate, _fista, _gradient, _lowrank, _moments, _threads
from fedvar_fast.kernels._lagged import block_row


def _matrix(a: FloatArray) -> FloatArray:
    """The array itself when it is C-ordered float64, else a copy that is."""
    return np.ascontiguousarray(a, dtype=np.float64)


def lagged_moments(
    y: FloatArray, center: FloatArray, order: int, n_threads: int = 1
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, bool]:
    """Lagged moments of ``z = y - center``, missing values read as zero, without a design matrix.

    ``S = sum x_t x_t'`` (pd, pd), ``C = sum z_t x_t'`` (d, pd), ``Q = sum z_t z_t'`` (d, d), ``sum x_t`` (pd,),
    ``sum z_t`` (d,) over the responses ``t = p .. T_raw - 1``, with ``x_t = [z_{t-1}; ...; z_{t-p}]``.
    Also whether every value was finite; where sums overflow, False too.
    """
    y = _matrix(y)
    dim = y.shape[1]
    top, total, complete = block_row(y, _matrix(center), order, n_threads)
    head, tail = y[:order] - center, y[len(y) - order :] - center
    head[np.isnan(head)] = 0.0
    tail[np.isnan(tail)] = 0.0
    xx = np.empty((order * dim, order * dim))
    x_sum = np.empty(order * dim)
    _moments.extend_block_row(top, total, head, tail, order, xx, x_sum)
    yy = top[:, :dim]
    return xx, np.ascontiguousarray(top[:, dim:]), 0.5 * (yy + yy.T), x_sum, total, complete


def gradient_pair(
    u: FloatArray, s: FloatArray, v: FloatArray, xx: FloatArray, yx: FloatArray, n_rows: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """``R = U'G`` (r, pd), ``B = (I - UU')GV`` (d, r) with ``G = (2/T)(A S - C)``; also ``V'SV`` and ``C V``."""
    dim, rank = u.shape
    width = len(v)
    vxx, core, yxv = np.empty((rank, width)), np.empty((rank, rank)), np.empty((dim, rank))
    row_part, column_part = np.empty((rank, width)), np.empty((dim, rank))
    _gradient.gradient_pair(
        _matrix(u),
        _matrix(s),
        _matrix(v),
        _matrix(xx),
        _matrix(yx),
        float(n_rows),
        vxx,
        core,
        yxv,
        row_part,
        column_part,
    )
    return row_part, column_part, core, yxv


def _clipped_segmentation(n_responses: int, order: int, dim: int, width: int) -> tuple[int, int, int]:
    """Segments, responses per segment, responses per block: a function of the problem's shape alone.

    A block holds ``d + 2 (p+1) r`` values a row, a quarter of a MiB in all where that is 64 rows or more (and never
    fewer rows than lags); 32 segments at most, of 512 rows at least, their accumulators 24 MiB together.
    """
    block = max(int(np.clip(32_768 // (dim + 2 * width), 64, 4096)), order)
    by_memory = 3_145_728 // max(dim * width, 1)
    n_segments = int(np.clip(min(n_responses // 512, by_memory), 1, 32))
    segment = -(-n_responses // n_segments)
    return -(-n_responses // segment), segment, min(block, segment)


def clipped_gradient_pair(
    y: AnyArray,
    center: FloatArray,
    scale: FloatArray,
    order: int,
    u: FloatArray,
    s: FloatArray,
    v: FloatArray,
    clip_norm: float,
    n_threads: int = 1,
    row_squares: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, int, int]:
    """``R`` (r, pd), ``B`` (d, r) of ``(2/T) sum_t min(1, c/||H_t||) H_t``, ``H_t = P_T(e_t x_t')``, from the series.

    ``z = (y - center) / scale``, ``e_t = A x_t - z_t``. Also the number of rows with ``||H_t|| <= c``, and the number
    of usable rows T: those without a missing (or infinite) value in the response or a lag. A float32 or float64
    series is read as it lies, whatever its strides; anything else is copied.

    For whitened regressors ``w_t = P x_t`` give ``P V`` as ``v`` and ``||w_t||^2`` as ``row_squares`` (T_raw - p,): B
    is then theirs, and R is to be multiplied by P from the right.
    """
    if y.dtype not in (np.float32, np.float64) or not (y.dtype.isnative and y.flags.aligned):
        y = _matrix(y)
    dim, rank = u.shape
    width = (order + 1) * rank
    n_segments, segment, block = _clipped_segmentation(max(len(y) - order, 1), order, dim, width)
    thin = np.empty((dim, order + 1, rank))
    thin[:, :order] = np.reshape(v, (order, dim, rank)).transpose(1, 0, 2)
    thin[:, order] = u
    partial, counts = np.zeros((n_segments, width, dim)), np.zeros((n_segments, 2), dtype=np.intp)
    squares = np.empty(0) if row_squares is None else _matrix(row_squares)
    _clipped.clipped_sums(
        y, _matrix(center), _matrix(1.0 / np.asarray(scale, dtype=np.float64)), thin.reshape(dim, width), _matrix(s),
        squares, order, float(clip_norm), segment, block, n_threads, partial, counts,
    )  # fmt: skip
    n_unclipped, n_rows = (int(count) for count in counts.sum(axis=0))
    total = (2.0 / max(n_rows, 1)) * partial.sum(axis=0)
    row_part = total[: order * rank].reshape(order, rank, dim).transpose(1, 0, 2).reshape(rank, order * dim)
    column_part = -np.ascontiguousarray(total[order * rank :].T)
    for _ in range(2):
        # Once leaves cancellation errors in the span of U.
        column_part -= u @ (u.T @ column_part)
    return np.ascontiguousarray(row_part), column_part, n_unclipped, n_rows


def soft_threshold(a: FloatArray, threshold: float) -> FloatArray:
    """``sign(a) max(|a| - threshold, 0)``, entry by entry."""
    out = np.empty(a.shape)
    _fista.soft_threshold(np.atleast_2d(_matrix(a)), float(threshold), np.atleast_2d(out))
    return out


def fista_lasso(
    xx: FloatArray,
    linear: FloatArray,
    energy: FloatArray,
    n_rows: float,
    penalty: float,
    step: float,
    start: FloatArray,
    max_iter: int,
    tol: float = -1.0,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """``min_D (1/T)(tr E - 2<D, M> + <D S, D>) + penalty ||D||_1``: coefficients, gaps and steps by row."""
    coef = np.array(start, dtype=np.float64, order="C")
    gaps = np.zeros(len(coef))
    iterations = np.zeros(len(coef), dtype=np.intc)
    _fista.fista_lasso(
        _matrix(xx), _matrix(linear), _matrix(energy), float(n_rows), float(penalty), float(step), max_iter,
        float(tol), 32, n_threads, coef, gaps, iterations,
    )  # fmt: skip
    return coef, gaps, iterations


def coordinate_lasso(
    xx: FloatArray,
    linear: FloatArray,
    energy: FloatArray,
    n_rows: float,
    penalty: float,
    start: FloatArray,
    max_iter: int,
    tol: float,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """The same problem as `fista_lasso`, by cyclic coordinate descent: coefficients, gaps and sweeps by row."""
    coef = np.array(start, dtype=np.float64, order="C")
    gaps = np.zeros(len(coef))
    iterations = np.zeros(len(coef), dtype=np.intc)
    _coordinate.coordinate_lasso(
        _matrix(xx), _matrix(linear), _matrix(energy), float(n_rows), float(penalty), max_iter, float(tol), n_threads,
        coef, gaps, iterations,
    )  # fmt: skip
    return coef, gaps, iterations


def admm(
    inverse: FloatArray,
    constant: FloatArray,
    coupling: float,
    low_share: float,
    nuclear_threshold: float,
    l1_threshold: float,
    max_entry: float,
    has_low: bool,
    has_sparse: bool,
    has_box: bool,
    n_iter: int,
    relaxation: float,
    copies: FloatArray,
    scaled: FloatArray,
    residuals: FloatArray,
) -> None:
    """`n_iter` steps of two-block ADMM, in place on ``copies`` and ``scaled`` (3, d, pd); see the compiled kernel."""
    _admm.admm(
        inverse, constant, coupling, low_share, nuclear_threshold, l1_threshold, max_entry, has_low, has_sparse,
        has_box, n_iter, relaxation, copies[0], copies[1], copies[2], scaled[0], scaled[1], scaled[2], residuals,
    )  # fmt: skip


def thin_qr(a: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``A = Q R`` of a tall (m, k) matrix: Q (m, k), R (k, k)."""
    if a.shape[0] < a.shape[1]:
        raise ValueError(f"thin_qr takes a tall matrix, not one of shape {a.shape}")
    q = np.array(a, dtype=np.float64, order="C")
    r = np.zeros((a.shape[1], a.shape[1]))
    _lowrank.thin_qr(q, r)
    return q, r


def thin_svd(a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``A = U diag(s) V'`` with k = min(m, n): U (m, k), s (k,), V' (k, n)."""
    n_rows, n_columns = a.shape
    small = min(n_rows, n_columns)
    u, s, vt = np.empty((n_rows, small)), np.empty(small), np.empty((small, n_columns))
    _lowrank.thin_svd(np.array(a, dtype=np.float64, order="C"), u, s, vt)
    if not np.isfinite(s).all():
        # LAPACK says so for NaN, but not for every infinity.
        raise ArithmeticError("a singular value decomposition failed: the matrix holds NaN or infinity")
    return u, s, vt


def retract(
    u: FloatArray, s: FloatArray, v: FloatArray, row_part: FloatArray, column_part: FloatArray, step: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """``SVD_r(U diag(s) V' - step (U R + B V'))`` from thin factors: U, s, V of the new point."""
    u_new, s_new, v_new = np.empty(u.shape), np.empty(s.shape), np.empty(v.shape)
    _lowrank.retract(
        _matrix(u), _matrix(s), _matrix(v), _matrix(row_part), _matrix(column_part), float(step), u_new, s_new, v_new
    )
    return u_new, s_new, v_new


def randomized_svd(
    a: FloatArray,
    sketch: FloatArray,
    n_power_iter: int = 4,
    rank: int | None = None,
    tol: float = -1.0,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Leading singular triplets of ``a`` (m, n) from a sketch (n, l), l <= min(m, n): U (m, l), s (l,), V' (l, n)."""
    n_rows, n_columns = a.shape
    width = sketch.shape[1]
    if width > min(n_rows, n_columns):
        raise ValueError(f"a sketch of {width} columns is wider than the matrix of shape {a.shape} has rank")
    u, s, vt = np.empty((n_rows, width)), np.empty(width), np.empty((width, n_columns))
    _lowrank.randomized_svd(
        _matrix(a), _matrix(sketch), rank or width, n_power_iter, tol, _threads.tiles_available(), n_threads, u, s, vt
    )
    return u, s, vt
