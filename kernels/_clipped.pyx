"""Per-row clipped gradient pairs straight from the series: two thin products a block, no design matrix."""

from cython.parallel cimport prange
from libc.math cimport INFINITY, hypot, sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from _blas cimport gemm

ctypedef fused real:
    float
    double

cdef struct _Problem:
    const double* center
    const double* inverse  # 1 / scale
    const double* thin  # [V_1 ... V_p U], d x (p+1) r
    const double* s
    const double* row_squares  # ||w_t||^2 by response, or NULL for ||x_t||^2
    Py_ssize_t dim
    Py_ssize_t rank
    Py_ssize_t order
    double clip_norm


cdef struct _Block:
    # One block of `rows` rows of the series, of which the first p are lags only.
    double* z  # rows x d
    double* square  # ||z_i||^2, or -1 where something in the row is missing
    double* product  # Z [V_1 ... V_p U], rows x (p+1) r
    double* weighted  # its transpose times Z is what is summed, rows x (p+1) r
    double* q  # U'e_t, r
    Py_ssize_t rows
    Py_ssize_t response  # number of the block's first response


cdef double _scaled_row(
    const real* source, Py_ssize_t stride, const double* center, const double* inverse, Py_ssize_t d, double* z
) noexcept nogil:
    """z = (source - center) / scale and its squared norm; -1 and a row of zeros when a value is not finite."""
    cdef Py_ssize_t c
    cdef double value, square
    # Four sums at once: one sum would wait for each addition in turn.
    cdef double v0, v1, v2, v3, s0 = 0.0, s1 = 0.0, s2 = 0.0, s3 = 0.0
    if stride == 1:
        for c in range(0, d - 3, 4):
            v0 = (source[c] - center[c]) * inverse[c]
            v1 = (source[c + 1] - center[c + 1]) * inverse[c + 1]
            v2 = (source[c + 2] - center[c + 2]) * inverse[c + 2]
            v3 = (source[c + 3] - center[c + 3]) * inverse[c + 3]
            z[c] = v0
            z[c + 1] = v1
            z[c + 2] = v2
            z[c + 3] = v3
            s0 = s0 + v0 * v0
            s1 = s1 + v1 * v1
            s2 = s2 + v2 * v2
            s3 = s3 + v3 * v3
        for c in range(d - d % 4, d):
            v0 = (source[c] - center[c]) * inverse[c]
            z[c] = v0
            s0 = s0 + v0 * v0
    else:
        for c in range(d):
            v0 = (source[c * stride] - center[c]) * inverse[c]
            z[c] = v0
            s0 = s0 + v0 * v0
    square = (s0 + s2) + (s1 + s3)
    if square - square == 0.0:
        return square
    # The sum is not finite: a missing value, or finite values whose squares overflow.
    for c in range(d):
        value = z[c]
        if value - value != 0.0:
            memset(z, 0, d * sizeof(double))
            return -1.0
    return square


cdef double _outside_square(const double* z, const double* inside, const _Problem* problem) noexcept nogil:
    """||z - U (U'z)||^2 entry by entry, where ||z||^2 - ||U'z||^2 would be rounding; `inside` is U'z."""
    cdef Py_ssize_t c, a, r = problem.rank, width = (problem.order + 1) * r
    cdef const double* u = problem.thin + problem.order * r
    cdef double value, total = 0.0
    for c in range(problem.dim):
        value = z[c]
        for a in range(r):
            value = value - u[c * width + a] * inside[a]
        total = total + value * value
    return total


cdef double _row_norm(
    const _Problem* problem, const double* z, const double* inside, double z_square, double x_square,
    double q_square, double inside_square, double vx_square,
) noexcept nogil:
    """||H_t|| = (||U'e||^2 ||x||^2 + ||(I - UU')e||^2 ||V'x||^2)^(1/2); A x is in span U: (I - UU')e = -(I - UU')z."""
    cdef double outside, square
    if problem.rank >= problem.dim:
        outside = 0.0
    else:
        outside = z_square - inside_square
        if outside < 0.0:
            outside = 0.0
        # Only where the digits lost in the difference would show in the norm.
        if q_square * x_square + outside * vx_square < 1e-4 * z_square * vx_square:
            outside = _outside_square(z, inside, problem)
    square = q_square * x_square + outside * vx_square
    if 1e-280 < square < 1e280:
        return sqrt(square)
    return hypot(sqrt(q_square) * sqrt(x_square), sqrt(outside) * sqrt(vx_square))


cdef void _weigh_rows(const _Problem* problem, const _Block* block, Py_ssize_t* counts) noexcept nogil:
    """From the products of a block to the weighted matrix, whose transpose times Z is summed.

    With w = min(1, c / ||H_t||): weighted[t - j, block j - 1] = w U'e_t (j = 1..p), weighted[t, block p] = w V'x_t.
    counts += (rows with ||H_t|| <= c, usable rows).
    """
    cdef Py_ssize_t r = problem.rank, order = problem.order, width = (order + 1) * r
    cdef Py_ssize_t i, j, a
    cdef double x_square, q_square, inside_square, vx_square, norm, weight, value
    cdef bint usable
    cdef const double* source
    cdef double* target
    cdef double* vx
    cdef double* q = block.q
    # What no response of this block writes: lags alone at its top, the last rows' lags at its end.
    memset(block.weighted, 0, order * width * sizeof(double))
    memset(block.weighted + (block.rows - order) * width, 0, order * width * sizeof(double))
    for i in range(order, block.rows):
        usable = block.square[i] >= 0.0
        x_square = 0.0
        for j in range(1, order + 1):
            usable = usable and block.square[i - j] >= 0.0
            x_square = x_square + block.square[i - j]
        vx = block.weighted + i * width + order * r
        weight = 0.0
        if usable:
            for a in range(r):
                vx[a] = 0.0
            for j in range(1, order + 1):
                source = block.product + (i - j) * width + (j - 1) * r
                for a in range(r):
                    vx[a] = vx[a] + source[a]
            source = block.product + i * width + order * r
            q_square = inside_square = vx_square = 0.0
            for a in range(r):
                value = problem.s[a] * vx[a] - source[a]
                q[a] = value
                q_square = q_square + value * value
                inside_square = inside_square + source[a] * source[a]
                vx_square = vx_square + vx[a] * vx[a]
            if problem.row_squares != NULL:
                x_square = problem.row_squares[block.response + i - order]
            norm = _row_norm(
                problem, block.z + i * problem.dim, source, block.square[i], x_square, q_square, inside_square,
                vx_square,
            )
            counts[1] += 1
            if norm <= problem.clip_norm:
                counts[0] += 1
                weight = 1.0
            elif norm < INFINITY:
                weight = problem.clip_norm / norm
        if weight == 0.0:
            # Not by multiplication: zero times an overflow is no zero.
            for a in range(r):
                q[a] = 0.0
                vx[a] = 0.0
        else:
            for a in range(r):
                q[a] = weight * q[a]
                vx[a] = weight * vx[a]
        for j in range(1, order + 1):
            target = block.weighted + (i - j) * width + (j - 1) * r
            for a in range(r):
                target[a] = q[a]


cdef int _accumulate(
    const real* y, Py_ssize_t row_stride, Py_ssize_t column_stride, const _Problem* problem,
    Py_ssize_t first, Py_ssize_t last, Py_ssize_t block_rows, double* total, Py_ssize_t* counts,
) noexcept nogil:
    """Add the responses `first <= t < last` to one accumulator. Returns 0, or 1 when there is no memory."""
    cdef Py_ssize_t d = problem.dim, order = problem.order, width = (order + 1) * problem.rank
    cdef Py_ssize_t most = min(block_rows, last - first) + order
    cdef Py_ssize_t start = first, n, i
    cdef _Block block
    if start >= last:
        return 0
    block.z = <double*> malloc((most * (d + 2 * width + 1) + problem.rank) * sizeof(double))
    if block.z == NULL:
        return 1
    block.product = block.z + most * d
    block.weighted = block.product + most * width
    block.square = block.weighted + most * width
    block.q = block.square + most
    while start < last:
        n = min(block_rows, last - start)
        block.rows = n + order
        block.response = start - order
        for i in range(block.rows):
            block.square[i] = _scaled_row(
                y + (start - order + i) * row_stride, column_stride, problem.center, problem.inverse, d,
                block.z + i * d,
            )
        gemm(False, False, <int> block.rows, <int> width, <int> d, 1.0, block.z, <int> d, problem.thin, <int> width,
             0.0, block.product, <int> width)
        _weigh_rows(problem, &block, counts)
        gemm(True, False, <int> width, <int> d, <int> block.rows, 1.0, block.weighted, <int> width, block.z, <int> d,
             1.0, total, <int> d)
        start += n
    free(block.z)
    return 0


def clipped_sums(
    const real[:, :] y, const double[::1] center, const double[::1] inverse, const double[:, ::1] thin,
    const double[::1] s, const double[::1] row_squares, int order, double clip_norm,
    Py_ssize_t segment, Py_ssize_t block, int n_threads, double[:, :, ::1] partial, Py_ssize_t[:, ::1] counts,
):
    """sum_t w_t (U'e_t) z_{t-j}', j = 1..p, and sum_t w_t (V'x_t) z_t', one accumulator per time segment.

    z = (y - center) / scale, x_t = [z_{t-1}; ...; z_{t-p}], e_t = A x_t - z_t, A = U diag(s) V',
    H_t = P_T(e_t x_t'), w_t = min(1, clip_norm / ||H_t||). Since A x_t lies in the span of U,

        U'e_t = s * V'x_t - U'z_t,    (I - UU')e_t = -(I - UU')z_t,
        ||H_t||^2 = ||U'e_t||^2 ||x_t||^2 + (||z_t||^2 - ||U'z_t||^2) ||V'x_t||^2,

    and one product Z [V_1 ... V_p U] of a block gives all of it; a second one, of the weighted U'e_t (shifted
    by each lag) and V'x_t with Z, gives the sums. A row is left out when its response or a lag is not finite.

    With whitened regressors w_t = P x_t, H_t = P_T(e_t w_t'), B = U diag(s) V', A = B P: `thin` holds P V in place of
    V, so that V'w_t = (P V)'x_t, and `row_squares` the norms ||w_t||^2; the first sum still has z_{t-j}, to be
    multiplied by P.

    Parameters
    ----------
    y : (T_raw, d), float32 or float64, any strides that are whole numbers of values
    center, inverse : (d,); inverse = 1 / scale
    thin : (d, (p+1) r), [V_1 ... V_p U], V_j the rows of V that belong to lag j
    s : (r,)
    row_squares : (T_raw - p,), ||w_t||^2; or empty: ||x_t||^2
    order : p
    clip_norm : c, infinity allowed
    segment : responses per time segment; segments are cut by the data's length, never by the thread count
    block : responses per product
    n_threads : threads that share the segments
    partial : (n_segments, (p+1) r, d), zero on entry
    counts : (n_segments, 2), zero on entry: rows with ||H_t|| <= c, usable rows
    """
    cdef Py_ssize_t n_rows = y.shape[0], n_segments = partial.shape[0], size = partial.shape[1] * partial.shape[2]
    cdef Py_ssize_t first, last, k
    # NumPy strides are bytes; an array of an aligned dtype has whole values between its entries.
    cdef Py_ssize_t row_stride = y.strides[0] // <Py_ssize_t> sizeof(real)
    cdef Py_ssize_t column_stride = y.strides[1] // <Py_ssize_t> sizeof(real)
    cdef const real* data = &y[0, 0]
    cdef double* sums = &partial[0, 0, 0]
    cdef _Problem problem
    cdef int failures = 0
    problem.center = &center[0]
    problem.inverse = &inverse[0]
    problem.thin = &thin[0, 0]
    problem.s = &s[0]
    problem.row_squares = &row_squares[0] if row_squares.shape[0] else NULL
    problem.dim = y.shape[1]
    problem.rank = s.shape[0]
    problem.order = order
    problem.clip_norm = clip_norm
    if problem.dim == 1:
        column_stride = 1  # NumPy gives an axis of length 1 any stride
    for k in prange(n_segments, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        first = order + k * segment
        last = min(n_rows, first + segment)
        failures += _accumulate(
            data, row_stride, column_stride, &problem, first, last, block, sums + k * size, &counts[k, 0]
        )
    if failures:
        raise MemoryError(f"no memory for a block of {block + order} rows of {problem.dim} variables")
