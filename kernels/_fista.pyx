"""Soft threshold, and FISTA for d lassos that share one Gram matrix."""

from cython.parallel cimport prange
from libc.math cimport sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _blas cimport axpy, gemm
from _lasso cimport row_gap, shrink

#: The share of nonzero entries above which a product with the Gram matrix goes through GEMM is 1 / _DENSE.
cdef enum:
    _DENSE = 6

cdef struct _Block:
    # The rows still at work, compact, and where each came from.
    double* x
    double* x_before
    double* product
    double* product_before
    double* linear
    double* momentum
    double* weight
    double* target
    const double* energy
    double* coef
    double* gaps
    int* iterations
    Py_ssize_t* index
    Py_ssize_t active
    Py_ssize_t width


def soft_threshold(const double[:, ::1] a, double threshold, double[:, ::1] out):
    """out = sign(a) max(|a| - threshold, 0), entry by entry."""
    cdef Py_ssize_t i, n = a.shape[0] * a.shape[1]
    cdef const double* source
    cdef double* target
    if n == 0:
        return
    source = &a[0, 0]
    target = &out[0, 0]
    with nogil:
        for i in range(n):
            target[i] = shrink(source[i], threshold)


cdef Py_ssize_t _support(const double* x, Py_ssize_t count) noexcept nogil:
    """Number of nonzero entries."""
    cdef Py_ssize_t j, found = 0
    for j in range(count):
        found += x[j] != 0.0
    return found


cdef void _times_gram(
    const double* x, const double* xx, double* product, Py_ssize_t rows, Py_ssize_t width
) noexcept nogil:
    """product = X S for a block of rows: by GEMM, or row by row over the nonzero entries when those are few.

    BLAS's axpy runs at about a sixth of its GEMM; the choice depends on the iterate only, never on the threads.
    """
    cdef Py_ssize_t i, j
    if _DENSE * _support(x, rows * width) > rows * width:
        gemm(False, False, rows, width, width, 1.0, x, width, xx, width, 0.0, product, width)
        return
    memset(product, 0, rows * width * sizeof(double))
    for i in range(rows):
        for j in range(width):
            if x[i * width + j] != 0.0:
                axpy(width, x[i * width + j], xx + j * width, product + i * width)


cdef Py_ssize_t _drop_converged(
    _Block* block, double n_rows, double penalty, bint adaptive, int iteration
) noexcept nogil:
    """Gaps of the rows still at work; with a tolerance, those that have reached theirs hand in and leave."""
    cdef Py_ssize_t i, row, kept = 0, width = block.width, length = block.width * sizeof(double)
    for i in range(block.active):
        row = block.index[i]
        block.gaps[row] = row_gap(
            block.x + i * width, block.product + i * width, block.linear + i * width, block.energy[row], n_rows,
            penalty, width,
        )
        if adaptive and block.gaps[row] <= block.target[row]:
            memcpy(block.coef + row * width, block.x + i * width, length)
            block.iterations[row] = iteration
            continue
        if kept != i:
            memcpy(block.x + kept * width, block.x + i * width, length)
            memcpy(block.x_before + kept * width, block.x_before + i * width, length)
            memcpy(block.product + kept * width, block.product + i * width, length)
            memcpy(block.product_before + kept * width, block.product_before + i * width, length)
            memcpy(block.linear + kept * width, block.linear + i * width, length)
            block.momentum[kept] = block.momentum[i]
            block.weight[kept] = block.weight[i]
            block.index[kept] = row
        kept += 1
    return kept


cdef void _step(_Block* block, double factor, double threshold, bint adaptive) noexcept nogil:
    """One FISTA step of every row at work: gradient, threshold and momentum in one sweep.

    The extrapolated point is z = x + w (x - x_before), so its product with S needs no GEMM of its own:
    z S = x S + w (x S - x_before S).
    """
    cdef Py_ssize_t i, j, width = block.width
    cdef double w, z, gradient, updated, disagreement, next_momentum
    cdef double *x
    cdef double *before
    cdef double *product
    cdef double *product_before
    cdef double *linear
    for i in range(block.active):
        x = block.x + i * width
        before = block.x_before + i * width
        product = block.product + i * width
        product_before = block.product_before + i * width
        linear = block.linear + i * width
        w = block.weight[i]
        disagreement = 0.0
        for j in range(width):
            z = x[j] + w * (x[j] - before[j])
            gradient = product[j] + w * (product[j] - product_before[j]) - linear[j]
            updated = shrink(z - factor * gradient, threshold)
            disagreement += (z - updated) * (updated - x[j])
            before[j] = x[j]
            x[j] = updated
        next_momentum = 0.5 * (1.0 + sqrt(1.0 + 4.0 * block.momentum[i] * block.momentum[i]))
        block.weight[i] = (block.momentum[i] - 1.0) / next_momentum
        block.momentum[i] = next_momentum
        if adaptive and disagreement > 0.0:
            block.momentum[i] = 1.0
            block.weight[i] = 0.0


cdef Py_ssize_t _solve_rows(
    const double* xx, const double* linear, const double* energy, double n_rows, double penalty, double step,
    int max_iter, double tol, Py_ssize_t rows, Py_ssize_t width,
    double* coef, double* gaps, int* iterations,
) noexcept nogil:
    """FISTA on a block of rows; rows that have converged leave. Returns 0, or 1 without memory.

    With tol < 0: exactly `max_iter` steps of plain FISTA, as in the paper. With tol >= 0: each row restarts its
    momentum when the step and the gradient disagree (O'Donoghue and Candes 2015), and stops on its duality gap,
    which costs nothing more, since x S is there.
    """
    cdef _Block block
    cdef Py_ssize_t size = rows * width, i
    cdef double factor = 2.0 * step / n_rows, threshold = step * penalty
    cdef int iteration
    cdef bint adaptive = tol >= 0.0
    cdef double* spare
    cdef double* memory = <double*> malloc((5 * size + 3 * rows) * sizeof(double))
    block.index = <Py_ssize_t*> malloc(rows * sizeof(Py_ssize_t))
    if memory == NULL or block.index == NULL:
        free(memory)
        free(block.index)
        return 1
    block.x = memory
    block.x_before = memory + size
    block.product = memory + 2 * size
    block.product_before = memory + 3 * size
    block.linear = memory + 4 * size
    block.momentum = memory + 5 * size
    block.weight = block.momentum + rows
    block.target = block.weight + rows
    block.energy = energy
    block.coef = coef
    block.gaps = gaps
    block.iterations = iterations
    block.active = rows
    block.width = width
    memcpy(block.x, coef, size * sizeof(double))
    memcpy(block.x_before, coef, size * sizeof(double))
    memcpy(block.linear, linear, size * sizeof(double))
    for i in range(rows):
        block.index[i] = i
        block.momentum[i] = 1.0
        block.weight[i] = 0.0
        block.target[i] = tol * energy[i] / n_rows
        iterations[i] = max_iter
    _times_gram(block.x, xx, block.product, rows, width)
    memcpy(block.product_before, block.product, size * sizeof(double))
    for iteration in range(max_iter):
        if adaptive:
            block.active = _drop_converged(&block, n_rows, penalty, True, iteration)
            if block.active == 0:
                break
        _step(&block, factor, threshold, adaptive)
        spare = block.product_before
        block.product_before = block.product
        block.product = spare
        _times_gram(block.x, xx, block.product, block.active, width)
    if block.active > 0:
        block.active = _drop_converged(&block, n_rows, penalty, False, max_iter)
        for i in range(block.active):
            memcpy(coef + block.index[i] * width, block.x + i * width, width * sizeof(double))
    free(memory)
    free(block.index)
    return 0


def fista_lasso(
    const double[:, ::1] xx, const double[:, ::1] linear, const double[::1] energy, double n_rows, double penalty,
    double step, int max_iter, double tol, Py_ssize_t rows_per_block, int n_threads,
    double[:, ::1] coef, double[::1] gaps, int[::1] iterations,
):
    """min_D (1/T)(tr E - 2 <D, M> + <D S, D>) + penalty ||D||_1: one lasso a row, one Gram matrix S for all.

    x+ = soft(z - step (2/T)(z S - M), step penalty),  z = x+ + ((q - 1)/q+)(x+ - x),  q+ = (1 + sqrt(1 + 4 q^2))/2.
    The duality gap of a row uses the residual scaled into the dual's feasible set,
    theta = min(1, penalty/||g||_inf) (2/T) (y - X d), with g the gradient.

    Parameters
    ----------
    xx, linear, energy : S (pd, pd), M (d, pd), and the diagonal of E (d,)
    n_rows : T
    penalty : of the l1 norm
    step : at most T / (2 ||S||_op)
    max_iter : steps
    tol : stop a row when its gap is at most tol times its loss at zero, E_ii / T; negative: never
    rows_per_block : rows that share a GEMM, fixed by the data so that the answer does not depend on n_threads
    coef : (d, pd), start on entry, solution on return
    gaps, iterations : (d,), outputs
    """
    cdef Py_ssize_t rows = linear.shape[0], width = linear.shape[1]
    cdef Py_ssize_t n_blocks, b, first, count, failures = 0
    if rows == 0 or width == 0:
        return
    n_blocks = (rows + rows_per_block - 1) // rows_per_block
    for b in prange(n_blocks, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        first = b * rows_per_block
        count = min(rows_per_block, rows - first)
        failures += _solve_rows(
            &xx[0, 0], &linear[first, 0], &energy[first], n_rows, penalty, step, max_iter, tol,
            count, width, &coef[first, 0], &gaps[first], &iterations[first],
        )
    if failures:
        raise MemoryError(f"no memory for FISTA on {rows} rows of {width} coefficients")
