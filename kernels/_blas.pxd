"""Row-major shims over SciPy's Cython BLAS and LAPACK.

All matrices here are C-ordered. BLAS is column-major: a C-ordered `m x n` matrix with row stride `ld` is the
column-major `n x m` transpose with leading dimension `ld`, so every shim swaps operands instead of copying.
Dimensions are C ints (LP64 BLAS): the callers cut time into blocks, so only d, pd and block lengths get here,
and `d * p` beyond 2**31 cannot be held in memory anyway.
"""

from scipy.linalg.cython_blas cimport daxpy as _daxpy
from scipy.linalg.cython_blas cimport dgemm as _dgemm
from scipy.linalg.cython_blas cimport dsyrk as _dsyrk
from scipy.linalg.cython_blas cimport dtrsm as _dtrsm
from scipy.linalg.cython_lapack cimport dgelqf as _dgelqf
from scipy.linalg.cython_lapack cimport dorglq as _dorglq
from scipy.linalg.cython_lapack cimport dgesdd as _dgesdd
from scipy.linalg.cython_lapack cimport dposv as _dposv
from scipy.linalg.cython_lapack cimport dpotrf as _dpotrf
from scipy.linalg.cython_lapack cimport dsyevd as _dsyevd


cdef inline void gemm(
    bint trans_a, bint trans_b, int m, int n, int k, double alpha,
    const double* a, int lda, const double* b, int ldb,
    double beta, double* c, int ldc,
) noexcept nogil:
    """C = alpha * op(A) op(B) + beta * C, with op(A) m x k, op(B) k x n, C m x n, all row-major."""
    cdef char ta = b"T" if trans_a else b"N"
    cdef char tb = b"T" if trans_b else b"N"
    if m == 0 or n == 0:
        return
    if lda < 1:
        lda = 1
    if ldb < 1:
        ldb = 1
    _dgemm(&tb, &ta, &n, &m, &k, &alpha, <double*> b, &ldb, <double*> a, &lda, &beta, c, &ldc)


cdef inline void syrk(
    int n, int k, double alpha, const double* a, int lda, double beta, double* c, int ldc
) noexcept nogil:
    """Lower triangle of C = alpha * A' A + beta * C, A k x n and C n x n, row-major."""
    # Column-major reading: A is n x k, and our lower triangle is BLAS's upper one.
    cdef char triangle = b"U"
    cdef char trans = b"N"
    _dsyrk(&triangle, &trans, &n, &k, &alpha, <double*> a, &lda, &beta, c, &ldc)


cdef inline int potrf(int n, double* a) noexcept nogil:
    """Cholesky: the lower triangle of A = R'R becomes R' (row-major; above it nothing changes). LAPACK's info."""
    cdef char triangle = b"U"
    cdef int info = 0
    _dpotrf(&triangle, &n, a, &n, &info)
    return info


cdef inline void divide_by_factor(int m, int n, const double* factor, double* a) noexcept nogil:
    """A = A R^{-1} in place: A m x n, row-major; `factor` holds R' in its lower triangle, as `potrf` leaves it."""
    # Column-major reading: A' = R'^{-1} A', and R' row-major is the upper triangle R.
    cdef char side = b"L"
    cdef char triangle = b"U"
    cdef char trans = b"T"
    cdef char diagonal = b"N"
    cdef double one = 1.0
    _dtrsm(&side, &triangle, &trans, &diagonal, &n, &m, &one, <double*> factor, &n, a, &n)


cdef inline void axpy(int n, double alpha, const double* x, double* y) noexcept nogil:
    """y += alpha x for contiguous vectors."""
    cdef int one = 1
    _daxpy(&n, &alpha, <double*> x, &one, y, &one)


cdef inline int gelqf(int m, int n, double* a, int lda, double* tau, double* work, int lwork) noexcept nogil:
    """LQ of a column-major m x n matrix: the QR of its row-major n x m reading. Returns LAPACK's info."""
    cdef int info = 0
    _dgelqf(&m, &n, a, &lda, tau, work, &lwork, &info)
    return info


cdef inline int orglq(
    int m, int n, int k, double* a, int lda, double* tau, double* work, int lwork
) noexcept nogil:
    """The m x n orthonormal factor of `gelqf`'s k reflectors. Returns LAPACK's info."""
    cdef int info = 0
    _dorglq(&m, &n, &k, a, &lda, tau, work, &lwork, &info)
    return info


cdef inline int gesdd(
    int m, int n, double* a, int lda, double* s, double* u, int ldu, double* vt, int ldvt,
    double* work, int lwork, int* iwork,
) noexcept nogil:
    """Thin SVD of a column-major m x n matrix (which is overwritten). Returns LAPACK's info."""
    cdef char job = b"S"
    cdef int info = 0
    _dgesdd(&job, &m, &n, a, &lda, s, u, &ldu, vt, &ldvt, work, &lwork, iwork, &info)
    return info


cdef inline int syevd(
    int n, double* a, double* values, double* work, int lwork, int* iwork, int liwork, bint vectors=True
) noexcept nogil:
    """Eigenvalues, ascending, of a symmetric n x n matrix; row i of `a` becomes eigenvector i if wanted. The info.

    Only the upper triangle of the row-major `a` is read.
    """
    cdef char job = b"V" if vectors else b"N"
    cdef char triangle = b"L"
    cdef int info = 0
    _dsyevd(&job, &triangle, &n, a, &n, values, work, &lwork, iwork, &liwork, &info)
    return info


cdef inline int posv(int n, double* a, double* b) noexcept nogil:
    """Solve A x = b, A symmetric positive definite (overwritten by its factor), x over b. Returns LAPACK's info."""
    cdef char triangle = b"L"
    cdef int info = 0
    cdef int one = 1
    _dposv(&triangle, &n, &one, a, &n, b, &n, &info)
    return info
