"""Was OpenMP there when the kernels were built, how many threads does a parallel loop get, are there register tiles?"""

from cython.parallel cimport prange, threadid

from _tiles cimport has_tiles


cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    #define FEDVAR_OPENMP 1
    static int fedvar_max_threads(void) { return omp_get_max_threads(); }
    #else
    #define FEDVAR_OPENMP 0
    static int fedvar_max_threads(void) { return 1; }
    #endif
    """
    bint FEDVAR_OPENMP
    int fedvar_max_threads() noexcept nogil


def openmp_enabled():
    """True when the kernels were compiled with OpenMP."""
    return bool(FEDVAR_OPENMP)


def max_threads():
    """OpenMP's default number of threads (OMP_NUM_THREADS, else the cores this process may use); 1 without OpenMP."""
    return fedvar_max_threads()


def tiles_available():
    """Whether products by register tiles were compiled and this processor has what they need."""
    return bool(has_tiles())


def threads_used(int n_threads):
    """The number of distinct threads that a parallel loop asked for `n_threads` really ran on."""
    cdef int i
    cdef int[:] seen
    import array

    seen = array.array("i", [0] * max(n_threads, 1))
    for i in prange(64 * n_threads, nogil=True, num_threads=n_threads, schedule="static"):
        seen[threadid()] = 1
    return sum(seen)
