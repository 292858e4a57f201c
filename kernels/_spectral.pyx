"""Lagged moments through short discrete Fourier transforms: a cost that hardly depends on the order."""

from cython.parallel cimport prange, threadid
from libc.string cimport memset

from _blas cimport gemm, syrk


cdef void _transform_block(
    const double* y, const double* center, Py_ssize_t n_rows, Py_ssize_t d, int order, Py_ssize_t length,
    Py_ssize_t first, const double* basis, int n_waves, Py_ssize_t n_blocks, Py_ssize_t at,
    double* z, double* waves, double* heads, double* tails, double* total,
) noexcept nogil:
    """Rows first .. first + length - 1 of z = y - center (zero where missing or beyond the end) and their waves.

    waves[k, at] = sum_i basis[k, i] z_i; heads[at] = [z_0, ..., z_{p-1}]; tails[at + 1] = [z_{L-1}, ..., z_{L-p}];
    total[at] = sum_i z_i.
    """
    cdef Py_ssize_t i, c, rows = min(length, n_rows - first)
    cdef double value
    cdef const double* source = y + first * d
    memset(total, 0, d * sizeof(double))
    for i in range(rows):
        for c in range(d):
            value = source[i * d + c] - center[c]
            value = value if value == value else 0.0
            z[i * d + c] = value
            total[c] += value
    if rows < length:
        memset(z + rows * d, 0, (length - rows) * d * sizeof(double))
    for i in range(order):
        for c in range(d):
            heads[i * d + c] = z[i * d + c]
            tails[i * d + c] = z[(length - 1 - i) * d + c]
    gemm(False, False, n_waves, d, length, 1.0, basis, length, z, d, 0.0, waves + at * d, n_blocks * d)


cdef void _seams_of_lag(
    const double* heads, const double* tails, Py_ssize_t n_blocks, Py_ssize_t d, int order, int lag, double* top,
) noexcept nogil:
    """top[:, lag d:(lag+1) d] += products of rows that stand in neighbouring blocks: sum_{i<lag} z_{b+i} z_{b+i-lag}'."""
    cdef int i
    for i in range(lag):
        gemm(
            True, False, d, d, n_blocks, 1.0, heads + i * d, order * d, tails + (lag - 1 - i) * d, order * d,
            1.0, top + lag * d, (order + 1) * d,
        )


def accumulate_waves(
    const double[:, ::1] y, const double[::1] center, int order, Py_ssize_t length, Py_ssize_t first_block,
    Py_ssize_t n_blocks, const double[:, ::1] basis, bint with_seams, int n_threads,
    double[:, :, ::1] z, double[:, :, ::1] waves, double[:, ::1] heads, double[:, ::1] tails, double[:, ::1] totals,
    double[:, :, ::1] even, double[:, :, ::1] odd, double[:, ::1] top,
):
    """Add a chunk of blocks of L rows to cross-spectra and seams.

    With a_k = sum_i z_i cos(2 pi k i / N), b_k = -sum_i z_i sin(2 pi k i / N) of a block padded to N >= L + p rows,
    its own lagged products are sum_i z_i z_{i-j}' = (1/N) sum_k w_k (P_k cos(2 pi k j/N) - (M_k - M_k') sin(2 pi k j/N)),
    P_k = a_k a_k' + b_k b_k', M_k = b_k a_k', w_k = 1 for k = 0 and N/2, else 2 (Wiener and Khinchin, for one block).
    Each frequency adds its blocks in order, whatever the number of threads.

    Parameters
    ----------
    y : (T_raw, d)
    center : (d,)
    order : p
    length : L
    first_block, n_blocks : the chunk: rows first_block L .. (first_block + n_blocks) L - 1
    basis : (2 F, L), rows cos and -sin of F frequencies in turn
    with_seams : whether heads, tails and totals are wanted (once, not for every group of frequencies)
    n_threads : threads over blocks, then over frequencies and lags
    z : (n_threads, L, d), working space
    waves : (2 F, n_blocks, d), working space
    heads, tails : (n_blocks, p d), (n_blocks + 1, p d), working space; tails[0] is the block's before, and on return
        the last block's of this chunk
    totals : (n_blocks, d), output: sums of rows by block
    even, odd : (F, d, d), P (lower triangle) and M, added to
    top : (d, (p+1) d), seams, added to
    """
    cdef Py_ssize_t n_rows = y.shape[0], d = y.shape[1], b, task
    cdef int n_waves = <int> basis.shape[0], n_frequencies = n_waves // 2, k, lag
    cdef Py_ssize_t width = n_blocks * d
    for b in prange(n_blocks, nogil=True, num_threads=n_threads, schedule="static"):
        _transform_block(
            &y[0, 0], &center[0], n_rows, d, order, length, (first_block + b) * length, &basis[0, 0], n_waves,
            n_blocks, b, &z[threadid(), 0, 0], &waves[0, 0, 0], &heads[b, 0], &tails[b + 1, 0], &totals[b, 0],
        )
    for task in prange(2 * n_frequencies, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        k = <int> (task // 2)
        if task % 2 == 0:
            # a and b lie one after the other: one rank-2n update.
            syrk(d, 2 * n_blocks, 1.0, &waves[2 * k, 0, 0], d, 1.0, &even[k, 0, 0], d)
        else:
            gemm(
                True, False, d, d, n_blocks, 1.0, &waves[2 * k + 1, 0, 0], d, &waves[2 * k, 0, 0], d, 1.0,
                &odd[k, 0, 0], d,
            )
    if with_seams:
        for task in prange(order, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
            lag = order - <int> task
            _seams_of_lag(&heads[0, 0], &tails[0, 0], n_blocks, d, order, lag, &top[0, 0])
        tails[0, :] = tails[n_blocks, :]
