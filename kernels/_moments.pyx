"""Lagged moments straight from the series: one pass over the top block row, edge corrections for the rest."""

from cython.parallel cimport prange
from libc.stdlib cimport free, malloc

from _blas cimport gemm


cdef int _accumulate(
    const double* y, const double* center, Py_ssize_t d, int order,
    Py_ssize_t first, Py_ssize_t last, Py_ssize_t block, int lag_from, int lag_to,
    double* top, double* total, unsigned char* doubtful,
) noexcept nogil:
    """Add the responses `first <= t < last` to one accumulator; only lags `lag_from <= j < lag_to`.

    top[:, j d:(j+1) d] += sum_t z_t z_{t-j}',  total += sum_t z_t  (total only when lag_from is 0),
    z = y - center with missing values read as 0; doubtful[0] = 1 where a value was not finite. Returns 0, or 1 when there is no memory for the block.
    """
    cdef Py_ssize_t width = (order + 1) * d
    cdef Py_ssize_t start, rows, i, c, n
    cdef int j
    cdef double value, probe = 0.0
    cdef const double* source
    cdef double* z = <double*> malloc((block + order) * d * sizeof(double))
    if z == NULL:
        return 1
    start = first
    while start < last:
        n = min(block, last - start)
        rows = n + order
        source = y + (start - order) * d
        for i in range(rows):
            for c in range(d):
                value = source[i * d + c] - center[c]
                z[i * d + c] = value if value == value else 0.0
                probe += value - value
        for j in range(lag_from, lag_to):
            gemm(True, False, d, d, n, 1.0, z + order * d, d, z + (order - j) * d, d, 1.0, top + j * d, width)
        if lag_from == 0:
            for i in range(order, rows):
                for c in range(d):
                    total[c] += z[i * d + c]
        start += n
    free(z)
    doubtful[0] = probe != 0.0
    return 0


def top_block_row(
    const double[:, ::1] y, const double[::1] center, int order, Py_ssize_t segment, Py_ssize_t block,
    int lags_apart, int n_threads, double[:, :, ::1] partial, double[:, ::1] partial_sum,
    unsigned char[:, ::1] doubtful,
):
    """Accumulate Gamma(0, j) = sum_t z_t z_{t-j}', j = 0..p, and sum_t z_t, one accumulator per time segment.

    Parameters
    ----------
    y : (T_raw, d)
    center : (d,); z = y - center
    order : p
    segment : responses per time segment; segments are cut by the data's length, never by the thread count
    block : responses per GEMM
    lags_apart : 1 when each lag is a task of its own (few segments, wide series), else 0
    n_threads : threads that share the tasks
    partial : (n_segments, d, (p+1) d), zero on entry
    partial_sum : (n_segments, d), zero on entry
    doubtful : (n_segments, p + 1), zero on entry; set where a task met a value that is not finite
    """
    cdef Py_ssize_t n_rows = y.shape[0], d = y.shape[1], n_segments = partial.shape[0]
    cdef Py_ssize_t first, last, s, task
    cdef int lag_groups = order + 1 if lags_apart else 1
    cdef int lag_from, lag_to
    cdef int failures = 0
    for task in prange(n_segments * lag_groups, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        s = task // lag_groups
        lag_from = <int> (task % lag_groups) if lags_apart else 0
        lag_to = lag_from + 1 if lags_apart else order + 1
        first = order + s * segment
        last = min(n_rows, first + segment)
        failures += _accumulate(
            &y[0, 0], &center[0], d, order, first, last, block, lag_from, lag_to,
            &partial[s, 0, 0], &partial_sum[s, 0], &doubtful[s, lag_from],
        )
    if failures:
        raise MemoryError(f"no memory for a block of {block + order} rows of {d} variables")


def extend_block_row(
    const double[:, ::1] top, const double[::1] total, const double[:, ::1] head, const double[:, ::1] tail,
    int order, double[:, ::1] xx, double[::1] x_sum,
):
    """The lower block rows from the top one.

    Gamma(i+1, j+1) = Gamma(i, j) + z_{p-1-i} z_{p-1-j}' - z_{T-1-i} z_{T-1-j}' (0-based rows of z), and
    likewise for the sums; xx[a, b] = Gamma(a+1, b+1), both triangles filled.

    Parameters
    ----------
    top : (d, (p+1) d)
    total : (d,), sum_t z_t
    head, tail : (p, d), the first and the last p rows of z
    xx : (pd, pd), output
    x_sum : (pd,), output
    """
    cdef Py_ssize_t d = top.shape[0], a, b, r, c
    cdef double value
    with nogil:
        for r in range(d):
            x_sum[r] = total[r] + head[order - 1, r] - tail[order - 1, r]
        for a in range(1, order):
            for r in range(d):
                x_sum[a * d + r] = x_sum[(a - 1) * d + r] + head[order - 1 - a, r] - tail[order - 1 - a, r]
        for a in range(order):
            for b in range(a, order):
                for r in range(d):
                    for c in range(d):
                        if a == 0:
                            value = top[r, b * d + c]
                        else:
                            value = xx[(a - 1) * d + r, (b - 1) * d + c]
                        xx[a * d + r, b * d + c] = (
                            value
                            + head[order - 1 - a, r] * head[order - 1 - b, c]
                            - tail[order - 1 - a, r] * tail[order - 1 - b, c]
                        )
        for r in range(order * d):
            for c in range(r):
                xx[r, c] = xx[c, r]
