"""Lagged moments through short discrete Fourier transforms: a cost that hardly depends on the order."""

from cython.parallel cimport prange, threadid
from libc.string cimport memset

from _blas cimport gemm, syrk


cdef void _fold(
    const double* rows, const double* center, Py_ssize_t d, Py_ssize_t length,
    double* even, double* odd, Py_ssize_t width,
) noexcept nogil:
    """even_i = z_i + z_{L-1-i}, odd_i = z_i - z_{L-1-i}, i < ceil(L/2) (a middle row once), z = rows - center.

    Rows of even and odd are `width` apart.
    """
    cdef Py_ssize_t i, c, half = length // 2
    cdef double early, late
    cdef const double* front
    cdef const double* back
    cdef double* plus
    cdef double* minus
    for i in range(half):
        front, back = rows + i * d, rows + (length - 1 - i) * d
        plus, minus = even + i * width, odd + i * width
        for c in range(d):
            early, late = front[c] - center[c], back[c] - center[c]
            plus[c] = early + late
            minus[c] = early - late
    if length % 2:
        for c in range(d):
            even[half * width + c] = rows[half * d + c] - center[c]
        memset(odd + half * width, 0, d * sizeof(double))


cdef void _clean(
    const double* rows, const double* center, Py_ssize_t n, Py_ssize_t d, Py_ssize_t length, double* z
) noexcept nogil:
    """z = rows - center, zero where missing and beyond the n rows there are."""
    cdef Py_ssize_t i, c
    cdef double value
    for i in range(n):
        for c in range(d):
            value = rows[i * d + c] - center[c]
            z[i * d + c] = value if value == value else 0.0
    memset(z + n * d, 0, (length - n) * d * sizeof(double))


cdef void _prepare_block(
    const double* y, const double* center, Py_ssize_t n_rows, Py_ssize_t d, int order, Py_ssize_t length,
    Py_ssize_t first, bint doubtful, double* z, double* even, double* odd, Py_ssize_t width,
    double* heads, Py_ssize_t head_stride, double* tails, Py_ssize_t tail_stride,
) noexcept nogil:
    """Fold the rows from `first` on; heads[i] = z_i, tails[i] = z_{L-p+i}, i < p.

    `z` is working space of L + 1 rows, the last of them zero.
    """
    cdef Py_ssize_t i, c
    cdef const double* rows = y + first * d
    cdef const double* shift = center
    if doubtful or first + length > n_rows:
        _clean(rows, center, min(length, n_rows - first), d, length, z)
        rows, shift = z, z + length * d
    _fold(rows, shift, d, length, even, odd, width)
    for i in range(order):
        for c in range(d):
            heads[i * head_stride + c] = rows[i * d + c] - shift[c]
            tails[i * tail_stride + c] = rows[(length - order + i) * d + c] - shift[c]


cdef bint _take_totals(
    const double* sums, Py_ssize_t n_blocks, Py_ssize_t d, double* totals, unsigned char* doubtful
) noexcept nogil:
    """The waves of frequency 0 are the blocks' sums. Whether a block that is not marked yet has one not finite: mark."""
    cdef Py_ssize_t b, c
    cdef double probe
    cdef bint found = False
    for b in range(n_blocks):
        probe = 0.0
        for c in range(d):
            totals[b * d + c] = sums[b * d + c]
            probe += sums[b * d + c] - sums[b * d + c]
        if probe != 0.0 and not doubtful[b]:
            doubtful[b] = found = True
    return found


cdef void _add_product(
    Py_ssize_t task, const double* waves, const double* heads, const double* tails, Py_ssize_t n_blocks, Py_ssize_t d,
    int order, bint with_seams, const unsigned char* real, double* even, double* odd, double* top,
) noexcept nogil:
    """One of the p products of the seams (the longest first), then the two of each frequency."""
    cdef Py_ssize_t area = d * d, wave = n_blocks * d, k
    cdef int lag = order - <int> task
    if lag > 0:
        if with_seams:
            # sum_{i < lag} z_i z_{i - lag}' over the seams: rows i of the heads beside rows p - lag + i of the tails.
            gemm(
                True, False, d, d, lag * n_blocks, 1.0, heads, d, tails + (order - lag) * wave, d,
                1.0, top + lag * d, (order + 1) * d,
            )
        return
    k = (task - order) // 2
    if (task - order) % 2 == 0:
        # The cosine and the sine waves lie one after the other: one rank-2n update.
        syrk(d, 2 * n_blocks, 1.0, waves + 2 * k * wave, d, 1.0, even + k * area, d)
    elif not real[k]:
        gemm(
            True, False, d, d, n_blocks, 1.0, waves + (2 * k + 1) * wave, d, waves + 2 * k * wave, d, 1.0,
            odd + k * area, d,
        )


def accumulate_waves(
    const double[:, ::1] y, const double[::1] center, int order, Py_ssize_t length, Py_ssize_t first_block,
    Py_ssize_t n_blocks, Py_ssize_t tile, const double[:, ::1] cosines, const double[:, ::1] sines,
    const unsigned char[::1] real, bint lowest, int n_threads,
    double[:, :, ::1] z, double[:, :, :, ::1] folded, double[:, :, :, ::1] waves, double[:, :, ::1] heads,
    double[:, :, ::1] tails, double[:, ::1] carry, double[:, ::1] totals, unsigned char[::1] doubtful,
    double[:, :, ::1] even, double[:, :, ::1] odd, double[:, ::1] top,
):
    """Add a chunk of blocks of L rows to cross-spectra and seams.

    With a_k = sum_i z_i cos(w_k (i - m)), b_k = -sum_i z_i sin(w_k (i - m)), w_k = 2 pi k / N and m = (L-1)/2, of a
    block padded to N >= L + p rows, its own lagged products are sum_i z_i z_{i-j}' =
    (1/N) sum_k c_k (P_k cos(w_k j) - (M_k - M_k') sin(w_k j)), P_k = a_k a_k' + b_k b_k', M_k = b_k a_k', c_k = 1 for
    k = 0 and N/2, else 2 (Wiener and Khinchin, for one block; where time starts does not matter). Around the middle m
    cosines are even and sines odd, so that each needs half as many rows: the folded ones.
    Each frequency adds its blocks in order, whatever the number of threads.

    Parameters
    ----------
    y : (T_raw, d)
    center : (d,)
    order : p
    length : L
    first_block, n_blocks : the chunk: rows first_block L .. (first_block + n_blocks) L - 1
    tile : blocks transformed by one product
    cosines, sines : (F, ceil(L/2)), cos(w_k (i - m)) and -sin(w_k (i - m)) of F frequencies
    real : (F,), 1 where k = 0 or N/2: M has no weight there
    lowest : whether these frequencies begin with k = 0: then sums, marks and the products across seams are made, too
    n_threads : threads over tiles, then over products
    z : (n_threads, L + 1, d), working space, its last rows zero
    folded : (n_threads, 2, ceil(L/2), tile d), working space
    waves : (F, 2, n_blocks, d), working space
    heads, tails : (p, n_blocks, d), working space
    carry : (p, d), the last p rows of the block before the chunk; on return those of its last block
    totals : (n_blocks, d), output: sums of rows by block
    doubtful : (n_blocks,), marks of blocks with values that are not finite (or whose sums overflow)
    even, odd : (F, d, d), P (lower triangle) and M, added to
    top : (d, (p+1) d), seams, added to
    """
    cdef Py_ssize_t n_rows = y.shape[0], d = y.shape[1], half = cosines.shape[1], wave = n_blocks * d
    cdef Py_ssize_t n_tiles = (n_blocks + tile - 1) // tile, width = tile * d, t, b, start, count, task
    cdef int n_frequencies = <int> cosines.shape[0], attempt
    cdef double* evens
    cdef double* odds
    tails[:, 0, :] = carry
    for t in prange(n_tiles, nogil=True, num_threads=n_threads, schedule="static"):
        evens, odds = &folded[threadid(), 0, 0, 0], &folded[threadid(), 1, 0, 0]
        start = t * tile
        count = min(tile, n_blocks - start)
        for attempt in range(2):
            for b in range(start, start + count):
                # A tail meets the head of the next block; the last one waits for the next chunk.
                _prepare_block(
                    &y[0, 0], &center[0], n_rows, d, order, length, (first_block + b) * length, doubtful[b],
                    &z[threadid(), 0, 0], evens + (b - start) * d, odds + (b - start) * d, width, &heads[0, b, 0], wave,
                    &tails[0, b + 1, 0] if b + 1 < n_blocks else &carry[0, 0], wave if b + 1 < n_blocks else d,
                )
            gemm(
                False, False, n_frequencies, count * d, half, 1.0, &cosines[0, 0], half, evens, width,
                0.0, &waves[0, 0, start, 0], 2 * wave,
            )
            # Sums that are not finite show values that are not: once more, value by value.
            if not (lowest and _take_totals(&waves[0, 0, start, 0], count, d, &totals[start, 0], &doubtful[start])):
                break
        gemm(
            False, False, n_frequencies, count * d, half, 1.0, &sines[0, 0], half, odds, width,
            0.0, &waves[0, 1, start, 0], 2 * wave,
        )
    for task in prange(order + 2 * n_frequencies, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        _add_product(
            task, &waves[0, 0, 0, 0], &heads[0, 0, 0], &tails[0, 0, 0], n_blocks, d, order, lowest, &real[0],
            &even[0, 0, 0], &odd[0, 0, 0], &top[0, 0],
        )
