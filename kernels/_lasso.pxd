"""What the lasso kernels share: the soft threshold of a number, and the duality gap of a row."""

from libc.math cimport fabs


cdef inline double shrink(double value, double threshold) noexcept nogil:
    """sign(value) max(|value| - threshold, 0).

    Two maxima instead of branches: the compiler turns this into vector instructions.
    """
    cdef double above = value - threshold
    cdef double below = value + threshold
    return (above if above > 0.0 else 0.0) + (below if below < 0.0 else 0.0)


cdef inline double largest_gradient(const double* product, const double* linear, Py_ssize_t count) noexcept nogil:
    """max_j |product_j - linear_j|, in four chains that do not wait for each other."""
    cdef double a = 0.0, b = 0.0, c = 0.0, e = 0.0, one, two, three, four
    cdef Py_ssize_t j = 0
    while j + 4 <= count:
        one, two = fabs(product[j] - linear[j]), fabs(product[j + 1] - linear[j + 1])
        three, four = fabs(product[j + 2] - linear[j + 2]), fabs(product[j + 3] - linear[j + 3])
        a = one if one > a else a
        b = two if two > b else b
        c = three if three > c else c
        e = four if four > e else e
        j += 4
    while j < count:
        one = fabs(product[j] - linear[j])
        a = one if one > a else a
        j += 1
    a = a if a > b else b
    c = c if c > e else e
    return a if a > c else c


cdef inline double gap_of_sums(
    double inner_linear, double inner_product, double l1, double largest, double energy, double n_rows, double penalty
) noexcept nogil:
    """Duality gap of one lasso from <d, m>, <d, S d>, |d|_1, max |S d - m| and E_ii (see `fista_lasso`)."""
    cdef double residual = energy - 2.0 * inner_linear + inner_product, scale, primal, dual
    largest = 2.0 * largest / n_rows
    if residual < 0.0:
        residual = 0.0
    scale = penalty / largest if largest > penalty else 1.0
    primal = residual / n_rows + penalty * l1
    dual = (2.0 * scale * (energy - inner_linear) - scale * scale * residual) / n_rows
    return primal - dual


cdef inline double row_gap(
    const double* coef, const double* product, const double* linear, double energy, double n_rows,
    double penalty, Py_ssize_t width,
) noexcept nogil:
    """Duality gap of one lasso at `coef`, given product = S coef."""
    cdef double inner_linear = 0.0, inner_product = 0.0, l1 = 0.0
    cdef Py_ssize_t j
    for j in range(width):
        inner_linear += coef[j] * linear[j]
        inner_product += coef[j] * product[j]
        l1 += fabs(coef[j])
    return gap_of_sums(
        inner_linear, inner_product, l1, largest_gradient(product, linear, width), energy, n_rows, penalty
    )
