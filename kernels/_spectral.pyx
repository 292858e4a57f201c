"""Lagged moments through short discrete Fourier transforms: a cost that hardly depends on the order."""

from cython.parallel cimport prange, threadid
from libc.string cimport memset

from _blas cimport gemm, syrk
from _rows cimport cleaned_row
from _tiles cimport TILE_COLUMNS, add_product, fetch_ahead


cdef extern from *:
    """
    /* C, for `__restrict` (so MSVC takes it, too): without it nothing here is done two or four at a time. */
    static void fold_four(
        const double *__restrict front, const double *__restrict back, const double *__restrict far_front,
        const double *__restrict far_back, const double *__restrict center, ptrdiff_t d, double *__restrict out,
        ptrdiff_t part
    ) {
        ptrdiff_t c;
        for (c = 0; c < d; c++) {
            const double z = front[c] - center[c], w = back[c] - center[c];
            const double far_z = far_front[c] - center[c], far_w = far_back[c] - center[c];
            const double even = z + w, odd = z - w, far_even = far_z + far_w, far_odd = far_z - far_w;
            out[c] = even + far_even;
            out[part + c] = even - far_even;
            out[2 * part + c] = odd - far_odd;
            out[3 * part + c] = odd + far_odd;
        }
    }
    static void fold_two(
        const double *__restrict front, const double *__restrict back, const double *__restrict center, ptrdiff_t d,
        double *__restrict out, ptrdiff_t part
    ) {
        ptrdiff_t c;
        for (c = 0; c < d; c++) {
            const double z = front[c] - center[c], w = back[c] - center[c];
            out[c] = out[part + c] = z + w;
            out[2 * part + c] = out[3 * part + c] = z - w;
        }
    }
    """
    void fold_four(
        const double* front, const double* back, const double* far_front, const double* far_back, const double* center,
        Py_ssize_t d, double* out, Py_ssize_t part
    ) noexcept nogil
    void fold_two(
        const double* front, const double* back, const double* center, Py_ssize_t d, double* out, Py_ssize_t part
    ) noexcept nogil


cdef struct _Problem:
    const double* y
    const double* center
    Py_ssize_t n_rows
    Py_ssize_t d
    int order
    Py_ssize_t length  # L
    Py_ssize_t size  # N
    Py_ssize_t n_folded  # rows of each of the four folded parts
    Py_ssize_t tile  # blocks transformed by one product
    int n_frequencies
    const double* table  # cosines of even and of odd frequencies, then sines
    const unsigned char* real
    bint lowest
    bint tiles
    double* totals  # of all blocks
    unsigned char* doubtful


cdef struct _Space:
    # Working space of one chunk of blocks.
    double* waves
    double* heads
    double* tails
    double* carry


cdef void _fold(
    const _Problem* problem, const double* rows, const double* center, const double* ahead, Py_ssize_t n_ahead,
    double* folded,
) noexcept nogil:
    """The rows of a block, z = rows - center, in four parts with a quarter of the rows each, as their waves see them.

    At the distance u from the middle, e = z_{m-u} + z_{m+u} is all that cosines see, o = z_{m-u} - z_{m+u} all that
    sines see. With v = N/2 - u, cos(w_k v) = (-1)^k cos(w_k u) and sin(w_k v) = -(-1)^k sin(w_k u): even frequencies
    see e_u + e_v and o_u - o_v, odd ones e_u - e_v and o_u + o_v, u <= N/4. A middle row counts once.
    The n_ahead values of the next block are asked for meanwhile.
    """
    cdef Py_ssize_t d = problem.d, length = problem.length, half = (length + 1) // 2, width = problem.tile * d
    cdef Py_ssize_t part = problem.n_folded * width, shift = problem.size // 2 - (length + 1) % 2, q, far, c
    cdef const double* front
    cdef const double* back
    cdef double* out
    for q in range(problem.n_folded):
        front, back = rows + (half - 1 - q) * d, rows + (length - half + q) * d
        out, far = folded + q * width, shift - q
        # The four rows that are read here run in different directions, which no hardware foresees.
        fetch_ahead(ahead + n_ahead * q // problem.n_folded, ahead + n_ahead * (q + 1) // problem.n_folded)
        if front == back:
            for c in range(d):
                out[c] = out[part + c] = front[c] - center[c]
            memset(out + 2 * part, 0, d * sizeof(double))
            memset(out + 3 * part, 0, d * sizeof(double))
        elif far > q and far < half:
            fold_four(
                front, back, rows + (half - 1 - far) * d, rows + (length - half + far) * d, center, d, out, part
            )
        else:
            fold_two(front, back, center, d, out, part)


cdef bint _clean(
    const double* rows, const double* center, Py_ssize_t n, Py_ssize_t d, Py_ssize_t length, double* z
) noexcept nogil:
    """z = rows - center, zero where missing and beyond the n rows there are. Whether a value was not finite."""
    cdef Py_ssize_t i
    cdef bint found = False
    for i in range(n):
        if cleaned_row(rows + i * d, center, d, z + i * d):
            found = True
    memset(z + n * d, 0, (length - n) * d * sizeof(double))
    return found


cdef void _prepare_block(
    const _Problem* problem, Py_ssize_t block, double* z, double* folded,
    double* heads, Py_ssize_t head_stride, double* tails, Py_ssize_t tail_stride,
) noexcept nogil:
    """Fold the rows of a block; heads[i] = z_i, tails[i] = z_{L-p+i}, i < p.

    `z` is working space of L + 1 rows, the last of them zero.
    """
    cdef Py_ssize_t i, c, d = problem.d, length = problem.length, first = block * length, order = problem.order
    cdef const double* rows = problem.y + first * d
    cdef const double* ahead = rows + length * d
    cdef const double* shift = problem.center
    cdef Py_ssize_t n_ahead = max(<Py_ssize_t> 0, min(length, problem.n_rows - first - length)) * d
    if problem.doubtful[block] or first + length > problem.n_rows:
        if _clean(rows, shift, min(length, problem.n_rows - first), d, length, z):
            problem.doubtful[block] = True
        rows, shift = z, z + length * d
    _fold(problem, rows, shift, ahead, n_ahead, folded)
    for i in range(order):
        for c in range(d):
            heads[i * head_stride + c] = rows[i * d + c] - shift[c]
            tails[i * tail_stride + c] = rows[(length - order + i) * d + c] - shift[c]


cdef bint _take_totals(
    const double* sums, Py_ssize_t n_blocks, Py_ssize_t d, double* totals, unsigned char* doubtful
) noexcept nogil:
    """Frequency 0 has the blocks' sums. Whether one is not finite in a block that is not marked yet: mark it."""
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


cdef void _transform(
    const _Problem* problem, int part, const double* folded, Py_ssize_t columns, double* waves, Py_ssize_t wave
) noexcept nogil:
    """One of the four products of waves with folded rows: cosines of even and of odd frequencies, then sines."""
    cdef Py_ssize_t n = problem.n_folded, width = problem.tile * problem.d
    cdef int n_even = (problem.n_frequencies + 1) // 2, m = problem.n_frequencies // 2 if part % 2 else n_even
    cdef const double* table = problem.table + (part // 2 * problem.n_frequencies + part % 2 * n_even) * n
    cdef const double* rows = folded + part * n * width
    # Of every frequency, cosines then sines; every second frequency is of this part.
    cdef double* target = waves + (2 * (part % 2) + part // 2) * wave
    if problem.tiles:
        add_product(m, columns, n, table, n, 1, rows, width, TILE_COLUMNS, target, 4 * wave, columns, True)
    else:
        gemm(
            False, False, m, <int> columns, <int> n, 1.0, table, <int> n, rows, <int> width,
            0.0, target, <int> (4 * wave),
        )


cdef void _add_inner(
    Py_ssize_t d, Py_ssize_t n, const double* left, const double* right, bint tiles, double* out, Py_ssize_t out_row
) noexcept nogil:
    """out (d x d) += L'R, both n x d."""
    if tiles:
        add_product(d, d, n, left, 1, d, right, d, TILE_COLUMNS, out, out_row, d, False)
    else:
        gemm(
            True, False, <int> d, <int> d, <int> n, 1.0, left, <int> d, right, <int> d, 1.0, out, <int> out_row
        )


cdef void _add_square(Py_ssize_t d, Py_ssize_t n, const double* a, bint tiles, double* out) noexcept nogil:
    """The lower triangle of out (d x d) += A'A, A n x d."""
    if tiles:
        add_product(d, d, n, a, 1, d, a, d, TILE_COLUMNS, out, d, 0, False)
    else:
        syrk(<int> d, <int> n, 1.0, a, <int> d, 1.0, out, <int> d)


cdef void _transform_tile(
    const _Problem* problem, Py_ssize_t first_block, Py_ssize_t n_blocks, Py_ssize_t start, double* z, double* folded,
    const _Space* space,
) noexcept nogil:
    """Waves, heads and tails of the blocks from `start` on, as many as a product transforms, of a chunk."""
    cdef Py_ssize_t d = problem.d, wave = n_blocks * d, b
    cdef Py_ssize_t count = min(problem.tile, n_blocks - start)
    cdef double* target = space.waves + start * d
    cdef int attempt, part
    for attempt in range(2):
        for b in range(start, start + count):
            # A tail meets the head of the next block; the last one waits for the next chunk.
            _prepare_block(
                problem, first_block + b, z, folded + (b - start) * d, space.heads + b * d, wave,
                space.tails + (b + 1) * d if b + 1 < n_blocks else space.carry, wave if b + 1 < n_blocks else d,
            )
        _transform(problem, 0, folded, count * d, target, wave)
        # Sums that are not finite show values that are not: once more, value by value.
        if not (
            problem.lowest
            and _take_totals(
                target, count, d, problem.totals + (first_block + start) * d, problem.doubtful + first_block + start
            )
        ):
            break
    for part in range(1, 4):
        _transform(problem, part, folded, count * d, target, wave)


cdef void _take_carry(const _Problem* problem, Py_ssize_t n_blocks, const _Space* space) noexcept nogil:
    """The tails of the chunk begin with the last rows of the block before it."""
    cdef Py_ssize_t i, c, d = problem.d
    for i in range(problem.order):
        for c in range(d):
            space.tails[i * n_blocks * d + c] = space.carry[i * d + c]


cdef void _add_one(
    const _Problem* problem, const _Space* space, Py_ssize_t n_blocks, Py_ssize_t task,
    double* even, double* odd, double* top,
) noexcept nogil:
    """One of the p products of the seams (the longest first), then the two of each frequency."""
    cdef Py_ssize_t d = problem.d, wave = n_blocks * d, k = (task - problem.order) // 2
    cdef int order = problem.order, lag = order - <int> task
    if lag > 0:
        if problem.lowest:
            # sum_{i < lag} z_i z_{i - lag}' over the seams: rows i of the heads beside rows p - lag + i of the tails.
            _add_inner(
                d, lag * n_blocks, space.heads, space.tails + (order - lag) * wave, problem.tiles,
                top + lag * d, (order + 1) * d,
            )
    elif (task - order) % 2 == 0:
        # The cosine and the sine waves lie one after the other: one rank-2n update.
        _add_square(d, 2 * n_blocks, space.waves + 2 * k * wave, problem.tiles, even + k * d * d)
    elif not problem.real[k]:
        _add_inner(
            d, n_blocks, space.waves + (2 * k + 1) * wave, space.waves + 2 * k * wave, problem.tiles,
            odd + k * d * d, d,
        )


cdef void _first_carry(const _Problem* problem, Py_ssize_t block, double* carry) noexcept nogil:
    """The last p rows before a block, zero where missing, or before the first one all zero."""
    cdef Py_ssize_t d = problem.d
    if block == 0:
        memset(carry, 0, problem.order * d * sizeof(double))
    else:
        _clean(
            problem.y + (block * problem.length - problem.order) * d, problem.center, problem.order, d, problem.order,
            carry,
        )


cdef void _add_multiple(double weight, const double* a, Py_ssize_t n, double* total) noexcept nogil:
    """total += weight a."""
    cdef Py_ssize_t l
    for l in range(n):
        total[l] += weight * a[l]


cdef void _add_lags(
    const _Problem* problem, const double* lag_cosines, const double* lag_sines, int at_once,
    const double* even, const double* odd, double* work, double* top,
) noexcept nogil:
    """top_j += sum_k (c_k/N) (P_k cos(w_k j) - (M_k - M_k') sin(w_k j)); `at_once` lags in 2 d^2 of `work` each."""
    cdef Py_ssize_t d = problem.d, area = d * d, width = (problem.order + 1) * d, i, c
    cdef int first = 0, last, lag, k, n = problem.n_frequencies
    cdef double* lower
    cdef double* skew
    while first <= problem.order:
        last = min(first + at_once, problem.order + 1)
        memset(work, 0, 2 * (last - first) * area * sizeof(double))
        for k in range(n):
            # A spectrum is read once for all these lags.
            for lag in range(first, last):
                lower = work + 2 * (lag - first) * area
                _add_multiple(lag_cosines[lag * n + k], even + k * area, area, lower)
                _add_multiple(lag_sines[lag * n + k], odd + k * area, area, lower + area)
        for lag in range(first, last):
            lower = work + 2 * (lag - first) * area
            skew = lower + area
            for i in range(d):
                for c in range(d):
                    top[i * width + lag * d + c] += (
                        lower[max(i, c) * d + min(i, c)] - skew[i * d + c] + skew[c * d + i]
                    )
        first = last


cdef void _whole_segment(
    const _Problem* problem, Py_ssize_t first_block, Py_ssize_t last_block, Py_ssize_t chunk, double* z, double* folded,
    double* memory, double* even, double* odd, double* top,
) noexcept nogil:
    """All chunks of the blocks `first_block <= b < last_block`, by one thread; even and odd are set."""
    cdef _Space space
    cdef Py_ssize_t n_blocks, start, task, d = problem.d
    space.carry = memory
    space.waves = memory + problem.order * d
    memset(even, 0, problem.n_frequencies * d * d * sizeof(double))
    memset(odd, 0, problem.n_frequencies * d * d * sizeof(double))
    _first_carry(problem, first_block, space.carry)
    while first_block < last_block:
        n_blocks = min(chunk, last_block - first_block)
        space.heads = space.waves + 2 * problem.n_frequencies * n_blocks * d
        space.tails = space.heads + problem.order * n_blocks * d
        _take_carry(problem, n_blocks, &space)
        start = 0
        while start < n_blocks:
            _transform_tile(problem, first_block, n_blocks, start, z, folded, &space)
            start += problem.tile
        for task in range(problem.order + 2 * problem.n_frequencies):
            _add_one(problem, &space, n_blocks, task, even, odd, top)
        first_block += n_blocks


def accumulate_waves(
    const double[:, ::1] y, const double[::1] center, int order, Py_ssize_t size, Py_ssize_t chunk, Py_ssize_t tile,
    const double[:, ::1] table, const unsigned char[::1] real,
    const double[:, ::1] lag_cosines, const double[:, ::1] lag_sines, int lags_at_once, bint lowest, bint tiles,
    int n_threads, double[:, :, ::1] z, double[:, ::1] folded, double[:, ::1] memory, double[:, ::1] spectra,
    double[:, ::1] totals, unsigned char[::1] doubtful, double[:, :, ::1] top,
):
    """Add the lagged products of a series cut into blocks of L rows, by their spectra, time segment by time segment.

    With a_k = sum_i z_i cos(w_k (i - m)), b_k = -sum_i z_i sin(w_k (i - m)), w_k = 2 pi k / N and m = (L-1)/2, of a
    block padded to N >= L + p rows, its own lagged products are sum_i z_i z_{i-j}' =
    (1/N) sum_k c_k (P_k cos(w_k j) - (M_k - M_k') sin(w_k j)), P_k = a_k a_k' + b_k b_k', M_k = b_k a_k', c_k = 1 for
    k = 0 and N/2, else 2 (Wiener and Khinchin, for one block; where time starts does not matter). Around the middle m
    cosines are even and sines odd, and even frequencies do at a distance u what they do at N/2 - u, odd ones the
    opposite: each needs a quarter of the rows, folded ones (`_fold`).

    Several segments are a thread's work each, from chunk to chunk. In one segment all threads share a chunk, the
    transforms first, then the products. Blocks are added in their order, whatever the number of threads.

    Parameters
    ----------
    y : (T_raw, d)
    center : (d,)
    order : p
    size : N; L = N - p
    chunk : blocks whose waves are held at once
    tile : blocks transformed by one product
    table : (2 F, n), cos(w_k u) of the even and then of the odd ones of F frequencies, the first of them even, then
        sin(w_k u); the n distances u = 0 or 1/2, ... up to N/4 (and (L-1)/2)
    real : (F,), 1 where k = 0 or N/2: M has no weight there
    lag_cosines, lag_sines : (p + 1, F), (c_k/N) cos(w_k j) and (c_k/N) sin(w_k j)
    lags_at_once : lags of which the sums over frequencies are held at once
    lowest : whether these frequencies begin with k = 0: then sums, marks and the products across seams are made, too
    tiles : products by register tiles instead of BLAS; `folded` and `memory` can then be read seven values beyond their
        ends
    n_threads : threads over segments, or over tiles, then over products
    z : (n_threads, L + 1, d), working space, its last rows zero
    folded : (n_threads, 4 n tile d), working space
    memory : (n, (2 F chunk + 2 p chunk + p) d), working space: a row a thread, one where there is one segment
    spectra : (n, 2 (F + lags_at_once) d^2), working space likewise: P (lower triangle), M, sums over frequencies
    totals : (n_blocks, d), output: sums of rows by block
    doubtful : (n_blocks,), marks of blocks with values that are not finite (or whose sums overflow)
    top : (n_segments, d, (p+1) d), added to
    """
    cdef Py_ssize_t n_all = totals.shape[0], n_segments = top.shape[0], n_blocks, n_tiles, first, t, s, task
    cdef _Problem problem
    cdef _Space space
    problem.y, problem.center = &y[0, 0], &center[0]
    problem.n_rows, problem.d, problem.order = y.shape[0], y.shape[1], order
    problem.length, problem.size, problem.n_folded, problem.tile = size - order, size, table.shape[1], tile
    problem.n_frequencies = <int> real.shape[0]
    problem.table, problem.real = &table[0, 0], &real[0]
    problem.lowest, problem.tiles = lowest, tiles
    problem.totals, problem.doubtful = &totals[0, 0], &doubtful[0]
    cdef Py_ssize_t area = problem.d * problem.d, odd = problem.n_frequencies * area
    if n_segments > 1:
        for s in prange(n_segments, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
            _whole_segment(
                &problem, s * n_all // n_segments, (s + 1) * n_all // n_segments, chunk, &z[threadid(), 0, 0],
                &folded[threadid(), 0], &memory[threadid(), 0], &spectra[threadid(), 0], &spectra[threadid(), odd],
                &top[s, 0, 0],
            )
            _add_lags(
                &problem, &lag_cosines[0, 0], &lag_sines[0, 0], lags_at_once, &spectra[threadid(), 0],
                &spectra[threadid(), odd], &spectra[threadid(), 2 * odd], &top[s, 0, 0],
            )
        return
    memset(&spectra[0, 0], 0, 2 * odd * sizeof(double))
    space.carry = &memory[0, 0]
    space.waves = space.carry + order * problem.d
    _first_carry(&problem, 0, space.carry)
    for first in range(0, n_all, chunk):
        n_blocks = min(chunk, n_all - first)
        n_tiles = (n_blocks + tile - 1) // tile
        space.heads = space.waves + 2 * problem.n_frequencies * n_blocks * problem.d
        space.tails = space.heads + order * n_blocks * problem.d
        _take_carry(&problem, n_blocks, &space)
        for t in prange(n_tiles, nogil=True, num_threads=n_threads, schedule="static"):
            _transform_tile(
                &problem, first, n_blocks, t * tile, &z[threadid(), 0, 0], &folded[threadid(), 0], &space
            )
        for task in prange(
            order + 2 * problem.n_frequencies, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1
        ):
            _add_one(&problem, &space, n_blocks, task, &spectra[0, 0], &spectra[0, odd], &top[0, 0, 0])
    _add_lags(
        &problem, &lag_cosines[0, 0], &lag_sines[0, 0], lags_at_once, &spectra[0, 0], &spectra[0, odd],
        &spectra[0, 2 * odd], &top[0, 0, 0],
    )
