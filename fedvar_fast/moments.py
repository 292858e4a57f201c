"""Lagged moments of one series: the only thing most solvers need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedvar_fast._memory import require_memory
from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.kernels import lagged_moments as _kernel
from fedvar_fast.kernels import one_blas_thread, resolve_n_jobs

__all__ = ["LaggedMoments", "check_order", "lagged_moments", "largest_eigenvalue", "pool_moments"]

#: Values of other types or layouts than C-ordered float64 that are converted at a time (8 MiB).
_CONVERTED_VALUES = 1_048_576
#: Rows of a design matrix built at once for the few rows that must be taken back.
_CORRECTION_ROWS = 2048


@dataclass(frozen=True)
class LaggedMoments:
    """Sums of products of a series and its lags.

    With ``z_t = y_t - center`` and ``x_t = [z_{t-1}; ...; z_{t-p}]`` over the usable rows ``t``:
    ``S = sum x_t x_t'``, ``C = sum z_t x_t'``, ``Q = sum z_t z_t'``. A row is usable when neither its response nor
    any of its lags is missing. Moments add: see `__add__`, `update`, `downdate`.

    Attributes
    ----------
    xx : ndarray, shape (pd, pd)
        ``S``, in squared units of the data.
    yx : ndarray, shape (d, pd)
        ``C``.
    yy : ndarray, shape (d, d)
        ``Q``.
    x_sum, y_sum : ndarray, shapes (pd,), (d,)
        ``sum x_t`` and ``sum z_t``, so that the centre can be moved afterwards.
    n_rows : int
        Usable rows ``T``.
    order : int
        Lags ``p``.
    center : ndarray, shape (d,)
        What was subtracted from every row.
    tail : ndarray, shape (p, d)
        The last ``p`` rows as they were given, from which `update` goes on.
    """

    xx: FloatArray
    yx: FloatArray
    yy: FloatArray
    x_sum: FloatArray
    y_sum: FloatArray
    n_rows: int
    order: int
    center: FloatArray
    tail: FloatArray = field(repr=False)

    @property
    def dim(self) -> int:
        """Number of variables ``d``."""
        return int(self.yx.shape[0])

    def __add__(self, other: LaggedMoments) -> LaggedMoments:
        """Moments of two stretches together.

        Two halves of one series give the moments of the whole but for the ``p`` rows at the seam, whose lags lie
        in the other half; `update` keeps those rows too.
        """
        if not isinstance(other, LaggedMoments):
            return NotImplemented
        if (self.order, self.dim) != (other.order, other.dim):
            raise OptionError(
                f"moments of order {self.order} and {self.dim} variables cannot be added to moments of order "
                f"{other.order} and {other.dim} variables"
            )
        return self._plus(other.recentered(self.center), 1, other.tail)

    def _plus(self, other: LaggedMoments, sign: int, tail: FloatArray) -> LaggedMoments:
        return LaggedMoments(
            xx=self.xx + sign * other.xx,
            yx=self.yx + sign * other.yx,
            yy=self.yy + sign * other.yy,
            x_sum=self.x_sum + sign * other.x_sum,
            y_sum=self.y_sum + sign * other.y_sum,
            n_rows=self.n_rows + sign * other.n_rows,
            order=self.order,
            center=self.center,
            tail=tail,
        )

    def update(self, new_rows: AnyArray, *, n_jobs: int | None = None) -> LaggedMoments:
        """Moments of the series with `new_rows` (n, d) appended, at the cost of the new rows only."""
        rows = _as_rows(new_rows)
        _check_width(rows, self.dim)
        if not len(rows):
            return self
        stretch = np.concatenate([self.tail, rows])
        return self._plus(_moments_of(stretch, self.order, self.center, n_jobs), 1, _tail(stretch, self.order))

    def downdate(self, old_rows: AnyArray, *, n_jobs: int | None = None) -> LaggedMoments:
        """Moments without the first rows of the series.

        Parameters
        ----------
        old_rows : array, shape (m + p, d)
            The ``m`` rows that leave at the front, and the ``p`` rows after them (which stay, as lags only).

        Raises
        ------
        DataError
            When more rows would leave than there are, or fewer than ``p + 1`` are given.
        """
        rows = _as_rows(old_rows)
        _check_width(rows, self.dim)
        if len(rows) <= self.order:
            raise DataError(
                f"downdate needs the rows that leave and the {self.order} rows after them, {self.order + 1} rows or "
                f"more; {len(rows)} were given"
            )
        leaving = _moments_of(rows, self.order, self.center, n_jobs)
        if leaving.n_rows > self.n_rows:
            raise DataError(f"{leaving.n_rows} rows cannot leave moments of {self.n_rows} rows")
        return self._plus(leaving, -1, self.tail)

    def recentered(self, center: FloatArray) -> LaggedMoments:
        """The moments of the same rows around another centre, exactly (up to rounding)."""
        shift = center - self.center
        if not shift.any():
            return self
        x_shift = np.tile(shift, self.order)
        n = self.n_rows
        cross_xx = np.outer(self.x_sum, x_shift)
        cross_yy = np.outer(self.y_sum, shift)
        return replace(
            self,
            xx=self.xx - cross_xx - cross_xx.T + n * np.outer(x_shift, x_shift),
            yx=self.yx - np.outer(self.y_sum, x_shift) - np.outer(shift, self.x_sum) + n * np.outer(shift, x_shift),
            yy=self.yy - cross_yy - cross_yy.T + n * np.outer(shift, shift),
            x_sum=self.x_sum - n * x_shift,
            y_sum=self.y_sum - n * shift,
            center=np.array(center, dtype=np.float64),
        )

    def standardized(self, center: FloatArray, scale: FloatArray) -> LaggedMoments:
        """The moments of ``(y - center) / scale``; the result stands for a series in those units (centre 0)."""
        moments = self.recentered(center)
        x_inverse, inverse = np.tile(1.0 / scale, self.order), 1.0 / scale
        return replace(
            moments,
            xx=moments.xx * np.outer(x_inverse, x_inverse),
            yx=moments.yx * np.outer(inverse, x_inverse),
            yy=moments.yy * np.outer(inverse, inverse),
            x_sum=moments.x_sum * x_inverse,
            y_sum=moments.y_sum * inverse,
            center=np.zeros(self.dim),
            tail=(self.tail - center) * inverse,
        )

    def loss(self, coef: FloatArray) -> float:
        """``(tr Q - 2<A, C> + <A S, A>)/T``, the mean squared one-step residual of ``A`` (d, pd)."""
        fitted = np.einsum("ij,ij->", coef @ self.xx, coef)
        return float((np.trace(self.yy) - 2.0 * np.einsum("ij,ij->", coef, self.yx) + fitted) / self.n_rows)

    def residual_covariance(self, coef: FloatArray) -> FloatArray:
        """``(Q - A C' - C A' + A S A')/T`` (d, d), the covariance of the residuals around zero."""
        cross = coef @ self.yx.T
        return (self.yy - cross - cross.T + coef @ self.xx @ coef.T) / self.n_rows

    def operator_norm(self) -> float:
        """The largest eigenvalue of ``S``."""
        return largest_eigenvalue(self.xx)


def pool_moments(parts: Sequence[LaggedMoments]) -> LaggedMoments:
    """Sums over several clients, each around its own centre (where `+` would first bring them to one centre)."""
    total = parts[0]
    for one in parts[1:]:
        total = total._plus(one, 1, one.tail)
    return total


def largest_eigenvalue(matrix: FloatArray) -> float:
    """Largest eigenvalue of a symmetric positive semidefinite matrix, by Lanczos where that is cheaper.

    The start vector is fixed, so that the answer is the same every time.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    size = len(matrix)
    if size == 0 or not np.any(np.diag(matrix) > 0):
        return 0.0
    if size <= 64:
        return float(np.linalg.eigvalsh(matrix)[-1])
    start = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    try:
        return float(eigsh(matrix, k=1, which="LA", v0=start, tol=1e-13, return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        return float(np.linalg.eigvalsh(matrix)[-1])


def lagged_moments(
    y: AnyArray | Iterable[AnyArray], order: int, *, center: FloatArray | None = None, n_jobs: int | None = None
) -> LaggedMoments:
    """Lagged moments straight from a series, never through a design matrix.

    One pass for the top block row ``Gamma(0, j) = sum z_t z_{t-j}'``, then
    ``Gamma(i+1, j+1) = Gamma(i, j) + z_{p-1-i} z_{p-1-j}' - z_{T-1-i} z_{T-1-j}'``: ``(2p+1) T d^2`` flops and a few
    MiB of memory. The answer does not depend on the number of threads.

    Parameters
    ----------
    y : array, shape (T_raw, d), or an iterable of such chunks
        Rows in time order; NumPy arrays and memory maps, of any real type (float32 is accumulated in float64).
        Missing values are NaN: rows that need one are left out.
    order : int
        Lags ``p``, at least 1.
    center : array, shape (d,), optional
        Subtracted from every row first; zero by default.
    n_jobs : int, optional
        Threads; every core by default.

    Returns
    -------
    LaggedMoments

    Raises
    ------
    OptionError
        ``order`` below 1, ``n_jobs`` 0, moments that cannot fit in memory.
    DataError
        Fewer than ``order + 1`` rows, infinite values, chunks of different widths.
    DataTypeError
        Values that are no numbers.
    """
    check_order(order)
    if hasattr(y, "__array__"):
        given = _checked(np.asarray(y))
        width = order * given.shape[1]
        what = f"moments of order {order} and {given.shape[1]} variables"
        require_memory(4 * 8.0 * width**2, what)
        if len(given) > order and not _is_plain(given) and given.size > _CONVERTED_VALUES:
            # Converted piece by piece: a float32 memory map must not become a float64 copy of itself.
            step = max(_CONVERTED_VALUES // given.shape[1], order + 1)
            return _from_chunks((given[i : i + step] for i in range(0, len(given), step)), order, center, n_jobs)
        rows = _as_rows(given)
        offset = _given_center(center, rows.shape[1])
        if len(rows) <= order:
            raise DataError(f"{len(rows)} rows are too few for order {order}: at least {order + 1} are needed")
        return _moments_of(rows, order, offset, n_jobs)
    return _from_chunks(y, order, center, n_jobs)


def _from_chunks(
    chunks: Iterable[AnyArray], order: int, center: FloatArray | None, n_jobs: int | None
) -> LaggedMoments:
    total: LaggedMoments | None = None
    waiting: FloatArray | None = None
    for chunk in chunks:
        rows = _as_rows(chunk)
        if total is not None:
            total = total.update(rows, n_jobs=n_jobs)
            continue
        if waiting is not None:
            _check_width(rows, waiting.shape[1])
            rows = np.concatenate([waiting, rows])
        if len(rows) > order:
            total = _moments_of(rows, order, _given_center(center, rows.shape[1]), n_jobs)
        else:
            waiting = rows
    if total is None:
        count = 0 if waiting is None else len(waiting)
        raise DataError(f"{count} rows are too few for order {order}: at least {order + 1} are needed")
    return total


def check_order(order: int) -> int:
    """The order as an int.

    Raises
    ------
    OptionError
        When it is no positive integer.
    """
    if isinstance(order, bool) or not hasattr(order, "__index__") or order < 1:
        raise OptionError(f"order={order!r} is not a number of lags: give a whole number, 1 or more")
    return int(order)


def _given_center(center: FloatArray | None, dim: int) -> FloatArray:
    if center is None:
        return np.zeros(dim)
    center = np.array(center, dtype=np.float64)
    if center.shape != (dim,) or not np.isfinite(center).all():
        raise OptionError(f"center must be {dim} finite numbers, one a variable, not of shape {center.shape}")
    return center


def _is_plain(rows: AnyArray) -> bool:
    """Whether the kernels can read the rows where they are."""
    return rows.dtype == np.float64 and rows.flags.c_contiguous and rows.dtype.isnative


def _checked(y: AnyArray) -> AnyArray:
    rows = np.asarray(y)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise DataError(f"a series is a table of rows in time by variables, not an array of shape {rows.shape}")
    if rows.dtype.kind not in "fiub":
        raise DataTypeError(f"a series holds real numbers, not {rows.dtype}")
    return rows


def _as_rows(y: AnyArray) -> FloatArray:
    rows = _checked(y)
    # A memory map that is float64 already stays one: asarray does not read it.
    return np.ascontiguousarray(rows, dtype=np.float64)


def _check_width(rows: FloatArray, dim: int) -> None:
    if rows.shape[1] != dim:
        raise DataError(f"{rows.shape[1]} columns where the series has {dim}")


def _tail(rows: FloatArray, order: int) -> FloatArray:
    return np.array(rows[len(rows) - order :])


def _moments_of(rows: FloatArray, order: int, center: FloatArray, n_jobs: int | None) -> LaggedMoments:
    with one_blas_thread(), np.errstate(invalid="ignore", over="ignore"):
        xx, yx, yy, x_sum, y_sum, complete = _kernel(rows, center, order, resolve_n_jobs(n_jobs))
        finite = np.ones(len(rows), dtype=bool) if complete else _finite_rows(rows)
    n_rows = len(rows) - order
    if not finite.all():
        usable = np.lib.stride_tricks.sliding_window_view(finite, order + 1).all(axis=1)
        unusable = np.flatnonzero(~usable) + order
        for start in range(0, len(unusable), _CORRECTION_ROWS):
            x, z = _design(rows, unusable[start : start + _CORRECTION_ROWS], order, center)
            xx, yx, yy = xx - x.T @ x, yx - z.T @ x, yy - z.T @ z
            x_sum, y_sum = x_sum - x.sum(axis=0), y_sum - z.sum(axis=0)
        n_rows -= len(unusable)
    return LaggedMoments(xx, yx, yy, x_sum, y_sum, n_rows, order, np.array(center), _tail(rows, order))


def _finite_rows(rows: FloatArray) -> AnyArray:
    """Which rows miss nothing; infinite values are refused."""
    # One number a row tells whether anything in it is missing, without a mask of the data's size.
    finite = np.isfinite(rows @ np.ones(rows.shape[1]))
    # A sum can overflow although every value is finite; only these rows are looked at again.
    doubtful = np.flatnonzero(~finite)
    finite[doubtful] = np.isfinite(rows[doubtful]).all(axis=1)
    infinite = np.isinf(rows[doubtful]).any(axis=1)
    if infinite.any():
        row = int(doubtful[np.flatnonzero(infinite)[0]])
        column = int(np.flatnonzero(np.isinf(rows[row]))[0])
        raise DataError(f"row {row + 1}, column {column + 1} of the series is infinite: correct or remove it")
    return finite


def _design(rows: FloatArray, responses: AnyArray, order: int, center: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Design matrix and responses of a few rows, missing values read as zero after centring, as the kernel does."""
    lagged = [np.nan_to_num(rows[responses - lag] - center, nan=0.0) for lag in range(order + 1)]
    return np.hstack(lagged[1:]), lagged[0]
