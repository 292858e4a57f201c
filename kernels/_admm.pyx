"""Two-block ADMM for one series: low rank plus sparse, with a box on the low-rank part."""

from libc.math cimport sqrt
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _blas cimport gemm, gesdd, syevd
from _lasso cimport shrink

# A Gram eigendecomposition sees singular values down to sqrt(eps) of the largest; when the threshold is a smaller
# part of it than this, the full decomposition decides.
cdef double GRAM_SAFE = 1e-4

cdef struct _Space:
    double* gram
    double* values
    double* half
    double* work
    double* u
    int lwork
    int* iwork
    int liwork


cdef int _threshold(const double* a, int m, int n, double threshold, double* out, _Space* space) noexcept nogil:
    """out = U max(diag(s) - threshold, 0) V', m <= n; only the part above the threshold is formed.

    From A A' = W diag(s^2) W': out = W f W' A, f = 1 - threshold / s. Returns LAPACK's info.
    """
    cdef int i, j, kept = 0, info, first
    cdef double factor, largest
    gemm(False, True, m, m, n, 1.0, a, n, a, n, 0.0, space.gram, m)
    info = syevd(m, space.gram, space.values, space.work, space.lwork, space.iwork, space.liwork)
    if info != 0:
        return info
    largest = space.values[m - 1]
    if largest <= threshold * threshold:
        memset(out, 0, m * n * sizeof(double))
        return 0
    if threshold < GRAM_SAFE * sqrt(largest):
        return _threshold_by_svd(a, m, n, threshold, out, space)
    while kept < m and space.values[m - 1 - kept] > threshold * threshold:
        kept += 1
    first = m - kept
    gemm(False, False, kept, n, m, 1.0, space.gram + first * m, m, a, n, 0.0, space.half, n)
    for i in range(kept):
        factor = 1.0 - threshold / sqrt(space.values[first + i])
        for j in range(n):
            space.half[i * n + j] *= factor
    gemm(True, False, m, n, kept, 1.0, space.gram + first * m, m, space.half, n, 0.0, out, n)
    return 0


cdef int _threshold_by_svd(
    const double* a, int m, int n, double threshold, double* out, _Space* space
) noexcept nogil:
    """The same by a full decomposition: out serves as LAPACK's copy, half as V'."""
    cdef int info, i, j, kept = 0
    memcpy(out, a, m * n * sizeof(double))
    # Column-major reading: a' = V S U', see _lowrank.
    info = gesdd(n, m, out, n, space.values, space.half, n, space.u, m, space.work, space.lwork, space.iwork)
    if info != 0:
        return info
    while kept < m and space.values[kept] > threshold:
        for j in range(n):
            space.half[kept * n + j] *= space.values[kept] - threshold
        kept += 1
    gemm(False, False, m, n, kept, 1.0, space.u, m, space.half, n, 0.0, out, n)
    return 0


cdef inline double _clip(double value, double bound) noexcept nogil:
    return bound if value > bound else (-bound if value < -bound else value)


def admm(
    const double[:, ::1] inverse, const double[:, ::1] constant, double coupling, double low_share,
    double nuclear_threshold, double l1_threshold, double max_entry, bint has_low, bint has_sparse, bint has_box,
    int n_iter, double relaxation,
    double[:, ::1] z_low, double[:, ::1] z_sparse, double[:, ::1] z_box,
    double[:, ::1] u_low, double[:, ::1] u_sparse, double[:, ::1] u_box, double[::1] residuals,
):
    """`n_iter` steps of two-block ADMM at one penalty parameter rho, in place.

    Minimises f(L + D) + lambda ||Z_1||_* + omega ||Z_2||_1 + [||Z_3||_inf <= zeta] with L = Z_1 = Z_3, D = Z_2,
    f(M) = (tr Q - 2<M, C> + <M S, M>)/T, and scaled multipliers U_i.
    Block one, jointly: with P_i = Z_i - U_i and R = (mean of P_1 and, with a box, P_3) + P_2,
    M = (2/T) C K + c R K,  K = ((2/T) S + c I)^-1,  L = R_L + a (M - R),  D = P_2 + (1 - a)(M - R).
    Block two, apart: Z_1 = SVT(L + U_1, lambda/rho), Z_2 = soft(D + U_2, omega/rho), Z_3 = clip(L + U_3, zeta);
    U_i += L or D - Z_i. Over-relaxed (Boyd et al. 2011, section 3.4.3).

    Parameters
    ----------
    inverse : K (pd, pd)
    constant : (2/T) C K (d, pd)
    coupling : c: rho/2 with both parts, 2 rho/3 with a box too; rho or 2 rho with the low-rank part alone
    low_share : a: 1/2, 1/3 with a box; 1 without a sparse part
    nuclear_threshold, l1_threshold : lambda / rho, omega / rho
    max_entry : zeta
    has_low, has_sparse, has_box : which parts there are
    n_iter : steps
    relaxation : in [1, 2)
    z_low, z_sparse, z_box, u_low, u_sparse, u_box : (d, pd), state in and out; those of absent parts are left alone
    residuals : (4,), output of the last step: ||(L, D) - Z||_F, ||Z||_F, ||Z - Z_before||_F, ||U||_F
    """
    cdef int d = constant.shape[0], pd = constant.shape[1], step, info = 0
    cdef Py_ssize_t size = <Py_ssize_t> d * pd, i
    cdef double primal = 0.0, moved = 0.0, length_z = 0.0, length_u = 0.0
    cdef double low_mean, change, low, sparse, relaxed, updated
    cdef double *r
    cdef double *m
    cdef double *target
    cdef double *memory
    cdef double *z1 = &z_low[0, 0]
    cdef double *z2 = &z_sparse[0, 0]
    cdef double *z3 = &z_box[0, 0]
    cdef double *u1 = &u_low[0, 0]
    cdef double *u2 = &u_sparse[0, 0]
    cdef double *u3 = &u_box[0, 0]
    cdef _Space space
    space.lwork = 4 * d * d + 8 * d + 2 * pd + 64 * (d + pd) + 2 * d * d
    space.liwork = 8 * d + 3
    memory = <double*> malloc((4 * size + 2 * d * d + d + space.lwork) * sizeof(double))
    space.iwork = <int*> malloc(space.liwork * sizeof(int))
    if memory == NULL or space.iwork == NULL:
        free(memory)
        free(space.iwork)
        raise MemoryError("no memory for ADMM")
    with nogil:
        r = memory
        m = r + size
        target = m + size
        space.half = target + size
        space.gram = space.half + size
        space.u = space.gram + d * d
        space.values = space.u + d * d
        space.work = space.values + d
        for step in range(n_iter):
            for i in range(size):
                low_mean = 0.0
                if has_low:
                    low_mean = z1[i] - u1[i]
                    if has_box:
                        low_mean = 0.5 * (low_mean + z3[i] - u3[i])
                r[i] = low_mean
                if has_sparse:
                    r[i] += z2[i] - u2[i]
            memcpy(m, &constant[0, 0], size * sizeof(double))
            gemm(False, False, d, pd, pd, coupling, r, pd, &inverse[0, 0], pd, 1.0, m, pd)
            primal = 0.0
            moved = 0.0
            length_z = 0.0
            length_u = 0.0
            for i in range(size):
                change = m[i] - r[i]
                if has_low:
                    low_mean = z1[i] - u1[i]
                    if has_box:
                        low_mean = 0.5 * (low_mean + z3[i] - u3[i])
                    low = low_mean + low_share * change
                    target[i] = relaxation * low + (1.0 - relaxation) * z1[i] + u1[i]
                    m[i] = low
                    if has_box:
                        relaxed = relaxation * low + (1.0 - relaxation) * z3[i] + u3[i]
                        updated = _clip(relaxed, max_entry)
                        primal += (low - updated) * (low - updated)
                        moved += (updated - z3[i]) * (updated - z3[i])
                        u3[i] = relaxed - updated
                        z3[i] = updated
                        length_z += updated * updated
                        length_u += u3[i] * u3[i]
                if has_sparse:
                    sparse = z2[i] - u2[i] + (1.0 - low_share) * change
                    relaxed = relaxation * sparse + (1.0 - relaxation) * z2[i] + u2[i]
                    updated = shrink(relaxed, l1_threshold)
                    primal += (sparse - updated) * (sparse - updated)
                    moved += (updated - z2[i]) * (updated - z2[i])
                    u2[i] = relaxed - updated
                    z2[i] = updated
                    length_z += updated * updated
                    length_u += u2[i] * u2[i]
            if has_low:
                # r has done its work in this step and takes the new Z_1.
                info = _threshold(target, d, pd, nuclear_threshold, r, &space)
                if info != 0:
                    break
                for i in range(size):
                    primal += (m[i] - r[i]) * (m[i] - r[i])
                    moved += (r[i] - z1[i]) * (r[i] - z1[i])
                    u1[i] = target[i] - r[i]
                    z1[i] = r[i]
                    length_z += r[i] * r[i]
                    length_u += u1[i] * u1[i]
        free(memory)
        free(space.iwork)
    if info != 0:
        raise ArithmeticError(f"a decomposition failed in LAPACK with info={info}: the data hold NaN or infinity")
    residuals[0] = sqrt(primal)
    residuals[1] = sqrt(length_z)
    residuals[2] = sqrt(moved)
    residuals[3] = sqrt(length_u)
