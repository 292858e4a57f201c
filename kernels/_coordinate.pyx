"""Coordinate descent for d lassos that share one Gram matrix."""

from cython.parallel cimport prange
from libc.math cimport fabs
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _blas cimport axpy, posv
from _lasso cimport gap_of_sums, largest_gradient, shrink

# Rounds of sweeps after which the nonzero coordinates are solved for exactly, the most of them that are, and sweeps
# over the nonzero coordinates between two over all.
cdef enum:
    PATIENCE = 3
    LARGEST_SYSTEM = 400
    INNER_SWEEPS = 10
    # Coordinates looked at together in a full sweep.
    STRETCH = 16
    # So many sweeps leave less rounding in S d than any gap that can be asked for.
    FEW_SWEEPS = 30


cdef double _update(
    double* coef, double* product, const double* xx, const double* diagonal, const double* linear, double threshold,
    int j, int width,
) noexcept nogil:
    """d_j = soft(S_jj d_j - (S d - m)_j, threshold) / S_jj; S d follows by axpy. The move, in units of the gradient."""
    cdef double before = coef[j], gradient = product[j] - linear[j], updated
    if before == 0.0 and fabs(gradient) <= threshold or diagonal[j] <= 0.0:
        return 0.0
    updated = shrink(diagonal[j] * before - gradient, threshold) / diagonal[j]
    if updated == before:
        return 0.0
    coef[j] = updated
    axpy(width, updated - before, xx + <Py_ssize_t> j * width, product)
    return fabs(updated - before) * diagonal[j]


cdef double _sweep(
    double* coef, double* product, const double* xx, const double* diagonal, const double* linear, double threshold,
    const int* which, int count, int width,
) noexcept nogil:
    """One pass over the coordinates `which`; returns the largest move."""
    cdef int i
    cdef double largest = 0.0, move
    for i in range(count):
        move = _update(coef, product, xx, diagonal, linear, threshold, which[i], width)
        largest = move if move > largest else largest
    return largest


cdef double _sweep_all(
    double* coef, double* product, const double* xx, const double* diagonal, const double* linear, double threshold,
    int* nonzero, int* count, int width,
) noexcept nogil:
    """One pass over all coordinates, `nonzero` the list of those that are not zero after it; the largest move.

    Most stretches of zeros have no gradient above the threshold and are passed over whole.
    """
    cdef int start = 0, last = 0, j, found = 0, old = 0, n_old = count[0]
    cdef double largest = 0.0, move
    cdef int* before = nonzero + width
    memcpy(before, nonzero, n_old * sizeof(int))
    while last < width:
        start, last = last, min(last + STRETCH, width)
        if (old == n_old or before[old] >= last) and (
            largest_gradient(product + start, linear + start, last - start) <= threshold
        ):
            continue
        for j in range(start, last):
            move = _update(coef, product, xx, diagonal, linear, threshold, j, width)
            largest = move if move > largest else largest
            if coef[j] != 0.0:
                nonzero[found] = j
                found += 1
        while old < n_old and before[old] < last:
            old += 1
    count[0] = found
    return largest


cdef double _sparse_gap(
    const double* coef, const double* product, const double* linear, double energy, double n_rows, double penalty,
    const int* nonzero, int count, int width,
) noexcept nogil:
    """Duality gap of one lasso whose nonzero coordinates are listed, given product = S coef."""
    cdef double inner_linear = 0.0, inner_product = 0.0, l1 = 0.0
    cdef int i, j
    for i in range(count):
        j = nonzero[i]
        inner_linear += coef[j] * linear[j]
        inner_product += coef[j] * product[j]
        l1 += fabs(coef[j])
    return gap_of_sums(
        inner_linear, inner_product, l1, largest_gradient(product, linear, width), energy, n_rows, penalty
    )


cdef void _product(
    const double* coef, const double* xx, const int* nonzero, int count, int width, double* product
) noexcept nogil:
    """product = S coef from the nonzero coordinates."""
    cdef int i
    memset(product, 0, width * sizeof(double))
    for i in range(count):
        axpy(width, coef[nonzero[i]], xx + <Py_ssize_t> nonzero[i] * width, product)


cdef int _face_optimum(
    double* coef, const double* xx, const double* linear, double threshold, int* nonzero, int count, int width,
    double* system, double* target,
) noexcept nogil:
    """The exact optimum over the face of the orthant that the nonzero coordinates span; returns how many are left.

    S_AA t = m_A - threshold sign(d_A); where t leaves the face, d moves to the first coordinate that reaches zero,
    which drops out, and the system is solved again: every move lowers the objective, and at most `count` follow.
    Between nearly equal columns coordinate descent would take as many sweeps as their curvature is small.
    """
    cdef int i, j, kept, crossing
    cdef double step, ratio, move
    while count > 0:
        for i in range(count):
            for j in range(count):
                system[i * count + j] = xx[<Py_ssize_t> nonzero[i] * width + nonzero[j]]
            target[i] = linear[nonzero[i]] - (threshold if coef[nonzero[i]] > 0.0 else -threshold)
        if posv(count, system, target) != 0:
            # Equal columns: any exchange between them is optimal, and the sweeps have found one.
            return count
        step = 1.0
        crossing = -1
        for i in range(count):
            if target[i] * coef[nonzero[i]] <= 0.0:
                ratio = coef[nonzero[i]] / (coef[nonzero[i]] - target[i])
                if ratio < step:
                    step = ratio
                    crossing = i
        for i in range(count):
            j = nonzero[i]
            move = step * (target[i] - coef[j])
            if i == crossing:
                move = -coef[j]
            coef[j] += move
        if crossing < 0:
            return count
        coef[nonzero[crossing]] = 0.0
        kept = 0
        for i in range(count):
            if coef[nonzero[i]] != 0.0:
                nonzero[kept] = nonzero[i]
                kept += 1
        count = kept
    return count


cdef int _solve_row(
    const double* xx, const double* diagonal, const double* linear, double energy, double n_rows, double penalty,
    int max_iter, double tol, int width, double* coef, double* gap, int* iterations,
) noexcept nogil:
    """One lasso. Sweeps over all coordinates alternate with sweeps over the nonzero ones until these stand still.

    Where that does not settle it in a few rounds, the nonzero ones are solved for exactly.
    """
    cdef double threshold = 0.5 * n_rows * penalty, target = tol * energy / n_rows, move, first_move
    cdef int active = 0, j, sweep = 0, rounds = 0, allocated = 0, inner
    cdef double* system = NULL
    cdef double* product = <double*> malloc(width * sizeof(double))
    cdef int* nonzero = <int*> malloc(2 * width * sizeof(int))
    if product == NULL or nonzero == NULL:
        free(product)
        free(nonzero)
        return 1
    for j in range(width):
        if diagonal[j] <= 0.0:
            # A variable that never changes has nothing to explain.
            coef[j] = 0.0
        if coef[j] != 0.0:
            nonzero[active] = j
            active += 1
    _product(coef, xx, nonzero, active, width, product)
    gap[0] = _sparse_gap(coef, product, linear, energy, n_rows, penalty, nonzero, active, width)
    while gap[0] > target and sweep < max_iter:
        first_move = _sweep_all(coef, product, xx, diagonal, linear, threshold, nonzero, &active, width)
        sweep += 1
        inner = 0
        while sweep < max_iter and active > 0 and inner < (1 if rounds >= PATIENCE else INNER_SWEEPS):
            move = _sweep(coef, product, xx, diagonal, linear, threshold, nonzero, active, width)
            sweep += 1
            inner += 1
            # The rest waits until the nonzero ones move an order of magnitude less than the full sweep did.
            if move <= 0.1 * first_move:
                break
        rounds += 1
        if rounds > PATIENCE and 0 < active <= LARGEST_SYSTEM:
            if active > allocated:
                free(system)
                allocated = active
                system = <double*> malloc((<size_t> active * active + active) * sizeof(double))
                if system == NULL:
                    free(product)
                    free(nonzero)
                    return 1
            active = _face_optimum(
                coef, xx, linear, threshold, nonzero, active, width, system, system + active * active
            )
        gap[0] = _sparse_gap(coef, product, linear, energy, n_rows, penalty, nonzero, active, width)
        if rounds > PATIENCE or sweep > FEW_SWEEPS and (gap[0] <= target or sweep >= max_iter):
            # Made afresh: thousands of small updates leave more rounding than such a gap allows.
            _product(coef, xx, nonzero, active, width, product)
            gap[0] = _sparse_gap(coef, product, linear, energy, n_rows, penalty, nonzero, active, width)
    iterations[0] = sweep
    free(system)
    free(product)
    free(nonzero)
    return 0


def coordinate_lasso(
    const double[:, ::1] xx, const double[:, ::1] linear, const double[::1] energy, double n_rows, double penalty,
    int max_iter, double tol, int n_threads, double[:, ::1] coef, double[::1] gaps, int[::1] iterations,
):
    """min_D (1/T)(tr E - 2 <D, M> + <D S, D>) + penalty ||D||_1: one lasso a row, one Gram matrix S for all.

    Cyclic coordinate descent with an active set (Friedman, Hastie and Tibshirani 2010); every row stops on its
    duality gap, as in `fista_lasso`.

    Parameters
    ----------
    xx, linear, energy : S (pd, pd), M (d, pd), and the diagonal of E (d,)
    n_rows : T
    penalty : of the l1 norm
    max_iter : sweeps, over all coordinates or over the nonzero ones
    tol : stop a row when its gap is at most tol times its loss at zero, E_ii / T
    n_threads : threads over rows
    coef : (d, pd), start on entry, solution on return
    gaps, iterations : (d,), outputs
    """
    cdef Py_ssize_t rows = linear.shape[0], i
    cdef int width = <int> linear.shape[1], failures = 0
    cdef double* diagonal
    if rows == 0 or width == 0:
        return
    # Side by side: in the matrix every entry of the diagonal is a cache line of its own.
    diagonal = <double*> malloc(width * sizeof(double))
    if diagonal == NULL:
        raise MemoryError(f"no memory for the diagonal of a {width} x {width} matrix")
    for i in range(width):
        diagonal[i] = xx[i, i]
    for i in prange(rows, nogil=True, num_threads=n_threads, schedule="dynamic", chunksize=1):
        failures += _solve_row(
            &xx[0, 0], diagonal, &linear[i, 0], energy[i], n_rows, penalty, max_iter, tol, width, &coef[i, 0], &gaps[i],
            &iterations[i],
        )
    free(diagonal)
    if failures:
        raise MemoryError(f"no memory for coordinate descent on {rows} rows of {width} coefficients")
