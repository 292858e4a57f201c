"""Soft threshold, and FISTA for d lassos that share one Gram matrix."""

from cython.parallel cimport prange
from libc.math cimport fabs, sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _blas cimport dot, gemm


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
            target[i] = _shrink(source[i], threshold)


cdef inline double _shrink(double value, double threshold) noexcept nogil:
    # Two maxima instead of branches: the compiler turns this into vector instructions.
    cdef double above = value - threshold
    cdef double below = value + threshold
    return (above if above > 0.0 else 0.0) + (below if below < 0.0 else 0.0)


cdef double _row_gap(
    const double* coef, const double* product, const double* linear, double energy, double n_rows,
    double penalty, Py_ssize_t width,
) noexcept nogil:
    """Duality gap of one lasso at `coef`, given product = S coef (see `fista_lasso`)."""
    cdef double inner_linear = 0.0, inner_product = 0.0, l1 = 0.0, largest = 0.0, gradient
    cdef double residual, scale, primal, dual
    cdef Py_ssize_t j
    for j in range(width):
        inner_linear += coef[j] * linear[j]
        inner_product += coef[j] * product[j]
        l1 += fabs(coef[j])
        gradient = fabs(product[j] - linear[j])
        if gradient > largest:
            largest = gradient
    largest = 2.0 * largest / n_rows
    residual = energy - 2.0 * inner_linear + inner_product
    if residual < 0.0:
        residual = 0.0
    scale = penalty / largest if largest > penalty else 1.0
    primal = residual / n_rows + penalty * l1
    dual = (2.0 * scale * (energy - inner_linear) - scale * scale * residual) / n_rows
    return primal - dual


cdef Py_ssize_t _solve_rows(
    const double* xx, const double* linear, const double* energy, double n_rows, double penalty, double step,
    int max_iter, double tol, int check_every, Py_ssize_t rows, Py_ssize_t width,
    double* coef, double* gaps, int* iterations,
) noexcept nogil:
    """FISTA on a block of rows; rows that have converged leave the block's GEMM. Returns 0, or 1 without memory.

    With tol < 0: exactly `max_iter` steps of plain FISTA, as in the paper. With tol >= 0: each row restarts its
    momentum when the step and the gradient disagree (O'Donoghue and Candes 2015), and stops on its duality gap.
    """
    cdef Py_ssize_t size = rows * width, i, j, active = rows, row, kept
    cdef double* memory = <double*> malloc((4 * size + 2 * rows) * sizeof(double))
    cdef Py_ssize_t* index = <Py_ssize_t*> malloc(rows * sizeof(Py_ssize_t))
    cdef double *extrapolated
    cdef double *product
    cdef double *current
    cdef double *right
    cdef double *momentum
    cdef double *target_gap
    cdef double factor = 2.0 * step / n_rows, threshold = step * penalty
    cdef double updated, before, disagreement, next_momentum, weight
    cdef double *x
    cdef double *z
    cdef double *g
    cdef const double *m
    cdef int iteration
    cdef bint adaptive = tol >= 0.0
    if memory == NULL or index == NULL:
        free(memory)
        free(index)
        return 1
    extrapolated = memory
    product = memory + size
    current = memory + 2 * size
    right = memory + 3 * size
    momentum = memory + 4 * size
    target_gap = momentum + rows
    memcpy(current, coef, size * sizeof(double))
    memcpy(extrapolated, coef, size * sizeof(double))
    memcpy(right, linear, size * sizeof(double))
    for i in range(rows):
        index[i] = i
        momentum[i] = 1.0
        target_gap[i] = tol * energy[i] / n_rows
        iterations[i] = max_iter
    for iteration in range(max_iter):
        if adaptive and iteration % check_every == 0:
            # The gap is that of the iterate itself, not of the extrapolated point.
            gemm(False, False, active, width, width, 1.0, current, width, xx, width, 0.0, product, width)
            kept = 0
            for i in range(active):
                row = index[i]
                gaps[row] = _row_gap(
                    current + i * width, product + i * width, right + i * width, energy[row], n_rows, penalty, width
                )
                if gaps[row] <= target_gap[row]:
                    memcpy(coef + row * width, current + i * width, width * sizeof(double))
                    iterations[row] = iteration
                    continue
                if kept != i:
                    memcpy(current + kept * width, current + i * width, width * sizeof(double))
                    memcpy(extrapolated + kept * width, extrapolated + i * width, width * sizeof(double))
                    memcpy(right + kept * width, right + i * width, width * sizeof(double))
                    momentum[kept] = momentum[i]
                    index[kept] = row
                kept += 1
            active = kept
            if active == 0:
                break
        gemm(False, False, active, width, width, 1.0, extrapolated, width, xx, width, 0.0, product, width)
        for i in range(active):
            x = current + i * width
            z = extrapolated + i * width
            g = product + i * width
            m = right + i * width
            next_momentum = 0.5 * (1.0 + sqrt(1.0 + 4.0 * momentum[i] * momentum[i]))
            weight = (momentum[i] - 1.0) / next_momentum
            disagreement = 0.0
            for j in range(width):
                before = x[j]
                updated = _shrink(z[j] - factor * (g[j] - m[j]), threshold)
                disagreement += (z[j] - updated) * (updated - before)
                x[j] = updated
                z[j] = updated + weight * (updated - before)
            momentum[i] = next_momentum
            if adaptive and disagreement > 0.0:
                momentum[i] = 1.0
                memcpy(z, x, width * sizeof(double))
    if active > 0:
        gemm(False, False, active, width, width, 1.0, current, width, xx, width, 0.0, product, width)
        for i in range(active):
            row = index[i]
            memcpy(coef + row * width, current + i * width, width * sizeof(double))
            gaps[row] = _row_gap(
                current + i * width, product + i * width, right + i * width, energy[row], n_rows, penalty, width
            )
    free(memory)
    free(index)
    return 0


def fista_lasso(
    const double[:, ::1] xx, const double[:, ::1] linear, const double[::1] energy, double n_rows, double penalty,
    double step, int max_iter, double tol, int check_every, Py_ssize_t rows_per_block, int n_threads,
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
    check_every : steps between two looks at the gap
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
            &xx[0, 0], &linear[first, 0], &energy[first], n_rows, penalty, step, max_iter, tol, check_every,
            count, width, &coef[first, 0], &gaps[first], &iterations[first],
        )
    if failures:
        raise MemoryError(f"no memory for FISTA on {rows} rows of {width} coefficients")
