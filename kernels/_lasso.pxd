"""What the lasso kernels share: the soft threshold of a number, and the duality gap of a row."""

from libc.math cimport fabs


cdef inline double shrink(double value, double threshold) noexcept nogil:
    """sign(value) max(|value| - threshold, 0).

    Two maxima instead of branches: the compiler turns this into vector instructions.
    """
    cdef double above = value - threshold
    cdef double below = value + threshold
    return (above if above > 0.0 else 0.0) + (below if below < 0.0 else 0.0)


cdef inline double row_gap(
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
