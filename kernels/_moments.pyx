"""Lagged moments straight from the series: one pass over the top block row, edge corrections for the rest."""

from cython.parallel cimport prange
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from _blas cimport gemm
from _rows cimport cleaned_row
from _tiles cimport TILE_COLUMNS, add_product


cdef void _add_lags(
    const double* z, Py_ssize_t n, Py_ssize_t d, int order, int lag_from, int lag_to, double* top
) noexcept nogil:
    """top[:, j d:(j+1) d] += sum_t z_t z_{t-j}', lag by lag; the first of the n responses is row p of `z`."""
    cdef int j
    for j in range(lag_from, lag_to):
        gemm(
            True, False, <int> d, <int> d, <int> n, 1.0, z + order * d, <int> d, z + (order - j) * d, <int> d,
            1.0, top + j * d, <int> ((order + 1) * d),
        )


cdef void _add_windows(
    const double* z, Py_ssize_t n, Py_ssize_t d, int order, int lag_from, int lag_to, double* top
) noexcept nogil:
    """The same sums by tiles, lags from the last to the first side by side: top[:, (p-j) d:(p-j+1) d].

    A response's window, the rows t-p .. t, lies in one piece in `z`: nothing is packed, and a tile may straddle two
    lags. Of lag 0 only tiles with an entry in the lower triangle. `z` can be read seven values beyond its rows.
    """
    cdef Py_ssize_t width = (order + 1) * d
    cdef Py_ssize_t first = (order + 1 - lag_to) * d // TILE_COLUMNS * TILE_COLUMNS
    cdef Py_ssize_t last = width if lag_from == 0 else (order + 1 - lag_from) * d // TILE_COLUMNS * TILE_COLUMNS
    add_product(
        d, last - first, n, z + order * d, 1, d, z + first, d, TILE_COLUMNS, top + first, width, order * d - first,
        False,
    )


cdef int _accumulate(
    const double* y, const double* center, Py_ssize_t d, int order,
    Py_ssize_t first, Py_ssize_t last, Py_ssize_t block, int lag_from, int lag_to, bint tiles,
    double* top, double* total, unsigned char* doubtful,
) noexcept nogil:
    """Add the responses `first <= t < last` to one accumulator; only lags `lag_from <= j < lag_to`.

    top as `_add_windows` or `_add_lags` has it, total += sum_t z_t (only when lag_from is 0), z = y - center with
    missing values read as 0; doubtful[0] = 1 where a value was not finite. Returns 0, or 1 when there is no memory
    for the block.
    """
    cdef Py_ssize_t start, rows, i, c, n
    cdef const double* source
    cdef double* z = <double*> malloc(((block + order) * d + TILE_COLUMNS) * sizeof(double))
    if z == NULL:
        return 1
    memset(z, 0, ((block + order) * d + TILE_COLUMNS) * sizeof(double))
    start = first
    while start < last:
        n = min(block, last - start)
        rows = n + order
        source = y + (start - order) * d
        for i in range(rows):
            if cleaned_row(source + i * d, center, d, z + i * d):
                doubtful[0] = True
        if tiles:
            _add_windows(z, n, d, order, lag_from, lag_to, top)
        else:
            _add_lags(z, n, d, order, lag_from, lag_to, top)
        if lag_from == 0:
            for i in range(order, rows):
                for c in range(d):
                    total[c] += z[i * d + c]
        start += n
    free(z)
    return 0


def top_block_row(
    const double[:, ::1] y, const double[::1] center, int order, Py_ssize_t segment, Py_ssize_t block,
    int lags_apart, bint tiles, int n_threads, double[:, :, ::1] partial, double[:, ::1] partial_sum,
    unsigned char[:, ::1] doubtful,
):
    """Accumulate Gamma(0, j) = sum_t z_t z_{t-j}', j = 0..p, and sum_t z_t, one accumulator per time segment.

    Parameters
    ----------
    y : (T_raw, d)
    center : (d,); z = y - center
    order : p
    segment : responses per time segment; segments are cut by the data's length, never by the thread count
    block : responses per product
    lags_apart : 1 when each lag is a task of its own (few segments, wide series), else 0
    tiles : products by register tiles instead of BLAS
    n_threads : threads that share the tasks
    partial : (n_segments, d, (p+1) d), zero on entry; the lags in order 0..p, by tiles p..0, of lag 0 then only the
        lower triangle for certain
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
            &y[0, 0], &center[0], d, order, first, last, block, lag_from, lag_to, tiles,
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
