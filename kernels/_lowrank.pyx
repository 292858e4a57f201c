"""Thin orthogonal factorisations: QR, SVD, the rank-2r retraction, the randomised truncated SVD.

Row-major throughout: the LQ of the transposed (column-major) reading is the QR of ours, and the SVD's two
factors change places, so that nothing is copied or transposed.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _blas cimport gelqf, gemm, gesdd, orglq, syevd


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


cdef int _leading_energy(
    const double* w, int n, int width, int rank, double* gram, double* values, double* work, int lwork, int* iwork,
    int liwork, double* energy,
) noexcept nogil:
    """energy = sum of the `rank` largest eigenvalues of W'W (W n x width): squared singular values found so far."""
    cdef int i, info
    gemm(True, False, width, width, n, 1.0, w, width, w, width, 0.0, gram, width)
    info = syevd(width, gram, values, work, lwork, iwork, liwork)
    energy[0] = 0.0
    for i in range(rank):
        energy[0] += values[width - 1 - i]
    return info


def randomized_svd(
    const double[:, ::1] a, const double[:, ::1] sketch, int rank, int n_power_iter, double tol,
    double[:, ::1] u, double[::1] s, double[:, ::1] vt,
):
    """Leading singular triplets of A from a sketch (Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1).

    Q = qr(A Omega); repeat: Q = qr(A qr(A'Q)); SVD of the small Q'A. Re-orthogonalised at every half step. The
    iterations stop early when the energy of the `rank` leading values, E = sum sigma_i^2 of A'Q, has grown by at
    most tol (||A||_F^2 - E): what is left to gain is a smaller part of the error than that.

    Parameters
    ----------
    a : (m, n)
    sketch : Omega (n, l) with l <= min(m, n)
    rank : leading triplets whose convergence counts, at most l
    n_power_iter : power iterations at the most
    tol : negative: never stop early
    u, s, vt : (m, l), (l,), (l, n), outputs

    Returns
    -------
    Power iterations made.
    """
    cdef int m = a.shape[0], n = a.shape[1], width = sketch.shape[1], iteration, done = 0
    cdef int info = 0, lwork = 1 + 6 * width + 2 * width * width, liwork = 3 + 5 * width
    cdef Py_ssize_t i, j
    cdef double total = 0.0, energy = 0.0, before = 0.0
    cdef double *memory
    cdef double *q
    cdef double *w
    cdef double *r
    cdef double *v
    cdef double *core
    cdef double *work
    cdef int *iwork
    cdef bint settled = False
    if m == 0 or n == 0 or width == 0:
        return 0
    memory = <double*> malloc(
        (<size_t> m * width + 2 * <size_t> n * width + 2 * width * width + width + lwork) * sizeof(double)
    )
    iwork = <int*> malloc(liwork * sizeof(int))
    if memory == NULL or iwork == NULL:
        free(memory)
        free(iwork)
        raise MemoryError("no memory for a randomised SVD")
    with nogil:
        q = memory
        w = q + m * width
        r = w + n * width
        core = r + width * width
        v = core + width * width
        work = v + n * width
        if tol >= 0.0:
            for i in range(m):
                for j in range(n):
                    total += a[i, j] * a[i, j]
        gemm(False, False, m, width, n, 1.0, &a[0, 0], n, &sketch[0, 0], width, 0.0, q, width)
        info = _qr(q, m, width, r)
        for iteration in range(n_power_iter):
            if info != 0:
                break
            gemm(True, False, n, width, m, 1.0, &a[0, 0], n, q, width, 0.0, w, width)
            if tol >= 0.0:
                info = _leading_energy(w, n, width, rank, r, work, work + width, lwork, iwork, liwork, &energy)
                settled = info == 0 and iteration > 0 and energy - before <= tol * (total - energy)
                if settled:
                    break
                before = energy
            if info == 0:
                info = _qr(w, n, width, r)
            if info == 0:
                gemm(False, False, m, width, n, 1.0, &a[0, 0], n, w, width, 0.0, q, width)
                info = _qr(q, m, width, r)
                done += 1
        if info == 0 and not settled:
            gemm(True, False, n, width, m, 1.0, &a[0, 0], n, q, width, 0.0, w, width)
        if info == 0:
            # A'Q = V' diag(s) W' gives A = (Q W) diag(s) V.
            info = _svd(w, n, width, v, &s[0], core)
        if info == 0:
            gemm(False, True, m, width, width, 1.0, q, width, core, width, 0.0, &u[0, 0], width)
            for i in range(n):
                for j in range(width):
                    vt[j, i] = v[i * width + j]
        free(memory)
        free(iwork)
    _check(info, "a randomised SVD")
    return done
