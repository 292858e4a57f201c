"""Thin orthogonal factorisations: QR, SVD, the rank-2r retraction, the randomised truncated SVD.

Row-major throughout: the LQ of the transposed (column-major) reading is the QR of ours, and the SVD's two
factors change places, so that nothing is copied or transposed.
"""

from cython.parallel cimport prange, threadid
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _blas cimport divide_by_factor, gelqf, gemm, gesdd, orglq, potrf, syevd, syrk
from _tiles cimport TILE_COLUMNS, TILE_ROWS, add_product, fetch_ahead

# Thin products are cut into pieces, whatever the number of threads: at most so many, and none too thin to be worth
# packing the other factor again.
cdef enum:
    MOST_PIECES = 16
    LEAST_ROWS = 240
    # Rows of the panels used at a time: all panels in the level-2 cache, or one and the block of A that is copied to be
    # read in one piece, of so many columns.
    CHUNK_COLUMNS = 1024
    CHUNK_ROWS = 96
    COPIED_COLUMNS = 96


cdef int _qr(double* a, int m, int k, double* r) noexcept nogil:
    """QR of the row-major m x k matrix `a`: Q (m x min(m, k), row-major, compact) replaces it; r is min(m, k) x k."""
    cdef int rank = min(m, k), info, i, j
    cdef int lwork = 64 * max(m, k)
    cdef double* memory = <double*> malloc((rank + lwork) * sizeof(double))
    if memory == NULL:
        return -1000
    # Column-major reading: a is k x m with leading dimension k; A' = L Q, L lower trapezoidal, R = L'.
    info = gelqf(k, m, a, k, memory, memory + rank, lwork)
    if info == 0:
        for i in range(rank):
            for j in range(k):
                r[i * k + j] = a[i * k + j] if j >= i else 0.0
        info = orglq(rank, m, rank, a, k, memory, memory + rank, lwork)
    if info == 0 and rank < k:
        for i in range(1, m):
            for j in range(rank):
                a[i * rank + j] = a[i * k + j]
    free(memory)
    return info


cdef int _svd(double* a, int m, int n, double* u, double* s, double* vt) noexcept nogil:
    """Thin SVD of the row-major m x n matrix `a` (overwritten): u m x min, s min, vt min x n, all row-major."""
    cdef int small = min(m, n), large = max(m, n), info
    cdef int lwork = 4 * small * small + 8 * small + 2 * large + 64 * (small + large)
    cdef double* work = <double*> malloc(lwork * sizeof(double))
    cdef int* iwork = <int*> malloc(8 * small * sizeof(int))
    if work == NULL or iwork == NULL:
        free(work)
        free(iwork)
        return -1000
    # Column-major reading: a is n x m and a' = U_c S V_c'; V_c' read row-major is our U, U_c is our V'.
    info = gesdd(n, m, a, n, s, vt, n, u, small, work, lwork, iwork)
    free(work)
    free(iwork)
    return info


cdef _check(int info, str what):
    if info == -1000:
        raise MemoryError(f"no memory for {what}")
    if info != 0:
        raise ArithmeticError(f"{what} failed in LAPACK with info={info}: the matrix holds NaN or infinity")


def thin_qr(double[:, ::1] q, double[:, ::1] r):
    """A = Q R: q holds A (m, k), m >= k, on entry and Q on return; r (k, k) upper triangular."""
    cdef int info
    if q.shape[1] == 0:
        return
    with nogil:
        info = _qr(&q[0, 0], q.shape[0], q.shape[1], &r[0, 0])
    _check(info, "a QR factorisation")


def thin_svd(double[:, ::1] a, double[:, ::1] u, double[::1] s, double[:, ::1] vt):
    """A = U diag(s) V' with k = min(m, n): `a` (m, n) is overwritten; u (m, k), s (k,), vt (k, n)."""
    cdef int info
    if a.shape[0] == 0 or a.shape[1] == 0:
        return
    with nogil:
        info = _svd(&a[0, 0], a.shape[0], a.shape[1], &u[0, 0], &s[0], &vt[0, 0])
    _check(info, "a singular value decomposition")


def retract(
    const double[:, ::1] u, const double[::1] s, const double[:, ::1] v,
    const double[:, ::1] row_part, const double[:, ::1] column_part, double step,
    double[:, ::1] u_new, double[::1] s_new, double[:, ::1] v_new,
):
    """SVD_r(A - step (U R + B V')) of A = U diag(s) V', exactly, from thin factors.

    A - step (U R + B V') = [U B] [[diag(s), -step I], [-step I, 0]] [V R']'. QR of the two outer factors
    and an SVD of the (at most) 2r x 2r core between them give the truncated SVD without a d x pd matrix.

    Parameters
    ----------
    u, s, v : (d, r), (r,), (pd, r)
    row_part, column_part : R (r, pd), B (d, r)
    u_new, s_new, v_new : outputs, same shapes as u, s, v
    """
    cdef int d = u.shape[0], r = u.shape[1], pd = v.shape[0]
    cdef int wide = 2 * r, left = min(d, wide), right = min(pd, wide), small = min(left, right)
    cdef Py_ssize_t i, j
    cdef int info = 0
    cdef double *memory
    cdef double *q_left
    cdef double *r_left
    cdef double *q_right
    cdef double *r_right
    cdef double *middle
    cdef double *half
    cdef double *core
    cdef double *core_u
    cdef double *core_s
    cdef double *core_vt
    if r == 0:
        return
    memory = <double*> malloc((d * wide + pd * wide + 9 * wide * wide) * sizeof(double))
    if memory == NULL:
        raise MemoryError("no memory for a retraction")
    with nogil:
        q_left = memory
        q_right = q_left + d * wide
        r_left = q_right + pd * wide
        r_right = r_left + wide * wide
        middle = r_right + wide * wide
        half = middle + wide * wide
        core = half + wide * wide
        core_u = core + wide * wide
        core_vt = core_u + wide * wide
        core_s = core_vt + wide * wide
        for i in range(d):
            for j in range(r):
                q_left[i * wide + j] = u[i, j]
                q_left[i * wide + r + j] = column_part[i, j]
        for i in range(pd):
            for j in range(r):
                q_right[i * wide + j] = v[i, j]
                q_right[i * wide + r + j] = row_part[j, i]
        info = _qr(q_left, d, wide, r_left)
        if info == 0:
            info = _qr(q_right, pd, wide, r_right)
        if info == 0:
            memset(middle, 0, wide * wide * sizeof(double))
            for i in range(r):
                middle[i * wide + i] = s[i]
                middle[i * wide + r + i] = -step
                middle[(r + i) * wide + i] = -step
            gemm(False, False, left, wide, wide, 1.0, r_left, wide, middle, wide, 0.0, half, wide)
            gemm(False, True, left, right, wide, 1.0, half, wide, r_right, wide, 0.0, core, right)
            info = _svd(core, left, right, core_u, core_s, core_vt)
        if info == 0:
            gemm(False, False, d, r, left, 1.0, q_left, left, core_u, small, 0.0, &u_new[0, 0], r)
            gemm(False, True, pd, r, right, 1.0, q_right, right, core_vt, right, 0.0, &v_new[0, 0], r)
            for i in range(r):
                s_new[i] = core_s[i]
        free(memory)
    _check(info, "a retraction")


cdef int _pieces(Py_ssize_t n) noexcept nogil:
    return <int> max(1, min(MOST_PIECES, n // LEAST_ROWS))


cdef void _pack(const double* b, Py_ssize_t n, int k, double* panels) noexcept nogil:
    """The n x k matrix in panels of TILE_COLUMNS columns, each n rows in one piece, zeros beyond column k."""
    cdef Py_ssize_t t, c, columns, first = 0
    while first < k:
        columns = min(<Py_ssize_t> TILE_COLUMNS, k - first)
        for t in range(n):
            for c in range(columns):
                panels[c] = b[t * k + first + c]
            for c in range(columns, TILE_COLUMNS):
                panels[c] = 0.0
            panels += TILE_COLUMNS
        first += TILE_COLUMNS


cdef void _add_tiles(
    const double* left, Py_ssize_t left_row, Py_ssize_t left_step, Py_ssize_t m,
    const double* panels, Py_ssize_t panel, Py_ssize_t n, double* out, int k
) noexcept nogil:
    """out (m x k) += L R, L[i, t] = left[i left_row + t left_step], t < n; the panels of R are `panel` values apart.

    A few rows of L at a time, for all panels: L is the large one.
    """
    cdef Py_ssize_t i = 0
    while i < m:
        add_product(
            min(<Py_ssize_t> TILE_ROWS, m - i), k, n, left + i * left_row, left_row, left_step,
            panels, TILE_COLUMNS, panel, out + i * k, k, k, False,
        )
        i += TILE_ROWS


cdef void _tiled_times(
    const double* a, Py_ssize_t m, Py_ssize_t n, const double* panels, int k, double* out
) noexcept nogil:
    """out (m x k) = A B of some rows of A; B in panels, of which as many rows as stay in cache at a time."""
    cdef Py_ssize_t start = 0, count
    memset(out, 0, m * k * sizeof(double))
    while start < n:
        count = min(<Py_ssize_t> CHUNK_COLUMNS, n - start)
        _add_tiles(a + start, n, 1, m, panels + start * TILE_COLUMNS, n * TILE_COLUMNS, count, out, k)
        start += CHUNK_COLUMNS


cdef void _tiled_transposed_times(
    const double* a, Py_ssize_t m, Py_ssize_t n, Py_ssize_t columns, const double* panels, int k, double* copied,
    double* out,
) noexcept nogil:
    """out (columns x k) = A'B of some columns of A; `copied` holds a block of A, whose rows are far apart in A."""
    cdef Py_ssize_t start = 0, count, first, width, ahead, t
    cdef const double* row
    memset(out, 0, columns * k * sizeof(double))
    while start < m:
        count = min(<Py_ssize_t> CHUNK_ROWS, m - start)
        first = 0
        while first < columns:
            width = min(<Py_ssize_t> COPIED_COLUMNS, columns - first)
            ahead = min(<Py_ssize_t> COPIED_COLUMNS, columns - first - width)
            for t in range(count):
                row = a + (start + t) * n + first
                memcpy(copied + t * width, row, width * sizeof(double))
                fetch_ahead(row + width, row + width + ahead)
            _add_tiles(
                copied, 1, width, width, panels + start * TILE_COLUMNS, m * TILE_COLUMNS, count, out + first * k, k
            )
            first += COPIED_COLUMNS
        start += CHUNK_ROWS


cdef void _times(
    const double* a, Py_ssize_t m, int n, const double* b, int k, double* out, double* panels, int n_threads
) noexcept nogil:
    """out (m x k) = A B, A m x n; `panels` is working space where tiles are used, else NULL."""
    cdef Py_ssize_t first, count
    cdef int pieces = _pieces(m), i
    if panels != NULL:
        _pack(b, n, k, panels)
    for i in prange(pieces, num_threads=n_threads, schedule="dynamic", chunksize=1):
        first = i * m // pieces
        count = (i + 1) * m // pieces - first
        if panels != NULL:
            _tiled_times(a + first * n, count, n, panels, k, out + first * k)
        else:
            gemm(False, False, <int> count, k, n, 1.0, a + first * n, n, b, k, 0.0, out + first * k, k)


cdef void _transposed_times(
    const double* a, int m, Py_ssize_t n, const double* b, int k, double* out, double* panels, double* copied,
    int n_threads,
) noexcept nogil:
    """out (n x k) = A' B, A m x n; `panels` and `copied` are working space where tiles are used, else NULL."""
    cdef Py_ssize_t first, count
    cdef int pieces = _pieces(n), i
    if panels != NULL:
        _pack(b, m, k, panels)
    for i in prange(pieces, num_threads=n_threads, schedule="dynamic", chunksize=1):
        first = i * n // pieces
        count = (i + 1) * n // pieces - first
        if panels != NULL:
            _tiled_transposed_times(
                a + first, m, n, count, panels, k, copied + threadid() * CHUNK_ROWS * COPIED_COLUMNS, out + first * k
            )
        else:
            gemm(True, False, <int> count, k, m, 1.0, a + first, <int> n, b, k, 0.0, out + first * k, k)


cdef void _gram(const double* a, Py_ssize_t m, int k, double* gram, double* parts, int n_threads) noexcept nogil:
    """Both triangles of A'A, A m x k; `parts` is working space for one sum a piece, added in order."""
    cdef Py_ssize_t area = k * k, first, l
    cdef int pieces = _pieces(m), i, j
    for i in prange(pieces, num_threads=n_threads, schedule="dynamic", chunksize=1):
        first = i * m // pieces
        syrk(k, <int> ((i + 1) * m // pieces - first), 1.0, a + first * k, k, 0.0, parts + i * area, k)
    memcpy(gram, parts, area * sizeof(double))
    for i in range(1, pieces):
        for l in range(area):
            gram[l] += parts[i * area + l]
    for i in range(k):
        for j in range(i):
            gram[j * k + i] = gram[i * k + j]


cdef void _divide(double* a, Py_ssize_t m, int k, const double* factor, int n_threads) noexcept nogil:
    """A = A R^{-1}, piece by piece."""
    cdef Py_ssize_t first
    cdef int pieces = _pieces(m), i
    for i in prange(pieces, num_threads=n_threads, schedule="dynamic", chunksize=1):
        first = i * m // pieces
        divide_by_factor(<int> ((i + 1) * m // pieces - first), k, factor, a + first * k)


cdef int _orthonormalise(
    double* a, int m, int k, const double* gram, double* r, double* factor, double* parts, int n_threads
) noexcept nogil:
    """QR of the row-major m x k matrix `a`, m >= k, in place, r (k x k) its R; gram = A'A.

    Twice by Cholesky, which is three products; where the columns are too close to dependent for that (the second
    pass repairs up to a condition number of about 1e7), by Householder. `factor` (k x k) and `parts` are working space.
    """
    cdef int i
    cdef double smallest, largest
    memcpy(factor, gram, k * k * sizeof(double))
    if potrf(k, factor) != 0:
        return _qr(a, m, k, r)
    smallest = largest = factor[0]
    for i in range(k):
        smallest, largest = min(smallest, factor[i * k + i]), max(largest, factor[i * k + i])
    if not smallest > 1e-6 * largest:
        return _qr(a, m, k, r)
    _divide(a, m, k, factor, n_threads)
    # r for now is the first R', lower.
    memcpy(r, factor, k * k * sizeof(double))
    _gram(a, m, k, factor, parts, n_threads)
    if potrf(k, factor) != 0:
        return -1
    _divide(a, m, k, factor, n_threads)
    _upper_product(factor, r, k)
    return 0


cdef void _upper_product(const double* second, double* first, int k) noexcept nogil:
    """first = R_2 R_1, upper, from R_2' and R_1' in lower triangles; row by row of R_1' = columns of R_1."""
    cdef int i, j, l
    cdef double value
    # Entry (i, j) of R_2 R_1 needs R_2[i, l] = second[l, i] and R_1[l, j] = first[j, l], i <= l <= j: computed into
    # the upper triangle, which only the diagonal shares with what is read; rows from the top leave it for last.
    for i in range(k):
        for j in range(k - 1, i - 1, -1):
            value = 0.0
            for l in range(i, j + 1):
                value += second[l * k + i] * first[j * k + l]
            first[i * k + j] = value
    for i in range(k):
        for j in range(i):
            first[i * k + j] = 0.0


cdef double _energy(const double* values, int first, int last) noexcept nogil:
    """Sum of values[first .. last - 1]."""
    cdef int i
    cdef double total = 0.0
    for i in range(first, last):
        total += values[i]
    return total


cdef bint _settled(
    const double* values, int width, int rank, double before, double tol
) noexcept nogil:
    """Whether at most tol sum_{i > r} sigma_i^2 of energy is left to gain, as far as double precision can tell.

    `values` are the squared singular values of the sketch, ascending; `before` is the energy of the `rank` leading ones
    half an iteration ago. Each half divides what is missing by about (sigma_r / sigma_{l+1})^2, of which the smallest
    value of the sketch gives an estimate, halved to be careful: with its inverse q, q / (1 - q) of the last gain is to
    come. What the oversamples hold is less than what the approximation leaves out of A.
    """
    cdef double energy = _energy(values, width - rank, width), ratio = 0.98
    if rank < width and 2.0 * values[0] < ratio * values[width - rank]:
        ratio = 2.0 * values[0] / values[width - rank]
    return (energy - before) * ratio / (1.0 - ratio) <= tol * _energy(values, 0, width - rank) + 1e-15 * energy


def randomized_svd(
    const double[:, ::1] a, const double[:, ::1] sketch, int rank, int n_power_iter, double tol, bint tiles,
    int n_threads, double[:, ::1] u, double[::1] s, double[:, ::1] vt,
):
    """Leading singular triplets of A from a sketch (Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1).

    Q = qr(A Omega); repeat: W = qr(A'Q), Q = qr(A W); SVD of the small Q'A, or of A W when a half ends it.
    Re-orthogonalised at every half. The iterations stop early when the energy of the `rank` leading values,
    E = sum sigma_i^2 of A'Q or A W, has no more than `tol` times the energy of the other l - r to gain (`_settled`),
    which is a smaller part yet of what the approximation leaves out.

    Parameters
    ----------
    a : (m, n)
    sketch : Omega (n, l) with l <= min(m, n)
    rank : leading triplets whose convergence counts, at most l
    n_power_iter : power iterations at the most
    tol : negative: never stop early
    tiles : products with A by register tiles instead of BLAS
    n_threads : threads over pieces of A
    u, s, vt : (m, l), (l,), (l, n), outputs

    Returns
    -------
    Halves of power iterations made.
    """
    cdef int m = a.shape[0], n = a.shape[1], width = sketch.shape[1], half = 0
    cdef int info = 0, lwork = 1 + 6 * width + 2 * width * width, liwork = 3 + 5 * width
    cdef size_t area = width * width
    cdef double before = 0.0
    cdef double *memory
    cdef double *q
    cdef double *w
    cdef double *gram
    cdef double *r
    cdef double *core
    cdef double *left
    cdef double *parts
    cdef double *work
    cdef int *iwork
    cdef double *panels = NULL
    cdef double *copied = NULL
    if m == 0 or n == 0 or width == 0:
        return 0
    memory = <double*> malloc((<size_t> (m + n) * width + (4 + MOST_PIECES) * area + width + lwork) * sizeof(double))
    iwork = <int*> malloc(liwork * sizeof(int))
    if tiles:
        panels = <double*> malloc((<size_t> max(m, n) * (width + TILE_COLUMNS)) * sizeof(double))
        copied = <double*> malloc((<size_t> n_threads * CHUNK_ROWS * COPIED_COLUMNS) * sizeof(double))
    if memory == NULL or iwork == NULL or tiles and (panels == NULL or copied == NULL):
        free(memory)
        free(iwork)
        free(panels)
        free(copied)
        raise MemoryError("no memory for a randomised SVD")
    with nogil:
        q = memory
        w = q + m * width
        gram = w + n * width
        r = gram + area
        core = r + area
        left = core + area
        parts = left + area
        work = parts + MOST_PIECES * area
        _times(&a[0, 0], m, n, &sketch[0, 0], width, q, panels, n_threads)
        _gram(q, m, width, gram, parts, n_threads)
        while info == 0:
            # Even halves end on the right, W = A'Q; odd ones on the left, Q = A W.
            if half % 2 == 0:
                info = _orthonormalise(q, m, width, gram, r, core, parts, n_threads)
                _transposed_times(&a[0, 0], m, n, q, width, w, panels, copied, n_threads)
                _gram(w, n, width, gram, parts, n_threads)
            else:
                info = _orthonormalise(w, n, width, gram, r, core, parts, n_threads)
                _times(&a[0, 0], m, n, w, width, q, panels, n_threads)
                _gram(q, m, width, gram, parts, n_threads)
            if info != 0 or half == 2 * n_power_iter:
                break
            if tol >= 0.0:
                memcpy(core, gram, area * sizeof(double))
                info = syevd(width, core, work, work + width, lwork, iwork, liwork, False)
                if info != 0 or half > 0 and _settled(work, width, rank, before, tol):
                    break
                before = _energy(work, width - rank, width)
            half += 1
        # A'Q = W R, or A W = Q R, with R = L diag(s) C: A = (Q C') diag(s) (W L)', or (Q L) diag(s) (W C')'.
        if info == 0 and half % 2 == 0:
            info = _orthonormalise(w, n, width, gram, r, core, parts, n_threads)
        elif info == 0:
            info = _orthonormalise(q, m, width, gram, r, core, parts, n_threads)
        if info == 0:
            info = _svd(r, width, width, left, &s[0], core)
        if info == 0 and half % 2 == 0:
            gemm(False, True, m, width, width, 1.0, q, width, core, width, 0.0, &u[0, 0], width)
            gemm(True, True, width, n, width, 1.0, left, width, w, width, 0.0, &vt[0, 0], n)
        elif info == 0:
            gemm(False, False, m, width, width, 1.0, q, width, left, width, 0.0, &u[0, 0], width)
            gemm(False, True, width, n, width, 1.0, core, width, w, width, 0.0, &vt[0, 0], n)
        free(memory)
        free(iwork)
        free(panels)
        free(copied)
    _check(info, "a randomised SVD")
    return half
