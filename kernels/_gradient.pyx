"""Tangent-space gradient pairs from moments."""

from _blas cimport gemm


def gradient_pair(
    const double[:, ::1] u, const double[::1] s, const double[:, ::1] v,
    const double[:, ::1] xx, const double[:, ::1] yx, double n_rows,
    double[:, ::1] vxx, double[:, ::1] core, double[:, ::1] yxv,
    double[:, ::1] row_part, double[:, ::1] column_part,
):
    """The two thin parts of the projected gradient at A = U diag(s) V', from moments alone.

    With G = (2/T)(A S - C):   R = U' G = (2/T)(diag(s) V'S - U'C)              (r x pd)
                               B = (I - U U') G V,  G V = (2/T)(U diag(s) V'SV - C V)   (d x r)
    so that P_T(G) = U R + B V'. The first term of G V lies in the span of U, hence B = -(2/T)(I - U U') C V.

    Parameters
    ----------
    u, s, v : (d, r), (r,), (pd, r); orthonormal columns
    xx, yx : S (pd, pd), C (d, pd)
    n_rows : T
    vxx : (r, pd), output, V'S
    core : (r, r), output, V'SV
    yxv : (d, r), output, C V
    row_part, column_part : R (r, pd) and B (d, r), outputs
    """
    cdef int d = u.shape[0], r = u.shape[1], pd = v.shape[0]
    cdef double two_over_rows = 2.0 / n_rows
    cdef Py_ssize_t i, j
    if r == 0 or d == 0 or pd == 0:
        return
    with nogil:
        gemm(True, False, r, pd, pd, 1.0, &v[0, 0], r, &xx[0, 0], pd, 0.0, &vxx[0, 0], pd)
        gemm(False, False, r, r, pd, 1.0, &vxx[0, 0], pd, &v[0, 0], r, 0.0, &core[0, 0], r)
        gemm(False, False, d, r, pd, 1.0, &yx[0, 0], pd, &v[0, 0], r, 0.0, &yxv[0, 0], r)
        gemm(True, False, r, pd, d, -two_over_rows, &u[0, 0], r, &yx[0, 0], pd, 0.0, &row_part[0, 0], pd)
        for i in range(r):
            for j in range(pd):
                row_part[i, j] = row_part[i, j] + two_over_rows * s[i] * vxx[i, j]
        _project_out(u, yxv, -two_over_rows, column_part)


cdef void _project_out(
    const double[:, ::1] u, const double[:, ::1] w, double factor, double[:, ::1] out
) noexcept nogil:
    """out = factor (I - U U') W; projected twice, since once leaves cancellation errors in the span of U."""
    cdef int d = u.shape[0], r = u.shape[1], sweep
    cdef Py_ssize_t i, j, k
    cdef double inner
    for i in range(d):
        for j in range(r):
            out[i, j] = factor * w[i, j]
    for sweep in range(2):
        for j in range(r):
            for k in range(r):
                inner = 0.0
                for i in range(d):
                    inner = inner + u[i, k] * out[i, j]
                for i in range(d):
                    out[i, j] = out[i, j] - inner * u[i, k]
