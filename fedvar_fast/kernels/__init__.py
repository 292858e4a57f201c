"""The door to the kernels: compiled ones, or their NumPy twins when FEDVAR_FAST_KERNELS=reference is set."""

from __future__ import annotations

import os

from fedvar_fast.exceptions import OptionError
from fedvar_fast.kernels._blas_threads import one_blas_thread

if os.environ.get("FEDVAR_FAST_KERNELS", "compiled") == "reference":
    from fedvar_fast.kernels import _reference as _backend
else:
    try:
        from fedvar_fast.kernels import _door as _backend  # type: ignore[no-redef]  # same names on purpose
    except ImportError as error:
        raise ImportError(
            "the compiled kernels of fedvar_fast are missing or do not fit this Python; `pip install .` in its "
            "source folder builds them (a C compiler is needed), and FEDVAR_FAST_KERNELS=reference in the "
            "environment runs the slow NumPy twins instead"
        ) from error

admm = _backend.admm
clipped_gradient_pair = _backend.clipped_gradient_pair
coordinate_lasso = _backend.coordinate_lasso
lagged_moments = _backend.lagged_moments
gradient_pair = _backend.gradient_pair
soft_threshold = _backend.soft_threshold
fista_lasso = _backend.fista_lasso
thin_qr = _backend.thin_qr
thin_svd = _backend.thin_svd
retract = _backend.retract
randomized_svd = _backend.randomized_svd

__all__ = [
    "admm",
    "clipped_gradient_pair",
    "coordinate_lasso",
    "fista_lasso",
    "gradient_pair",
    "lagged_moments",
    "one_blas_thread",
    "openmp_enabled",
    "randomized_svd",
    "resolve_n_jobs",
    "retract",
    "soft_threshold",
    "thin_qr",
    "thin_svd",
]


def openmp_enabled() -> bool:
    """Whether the kernels were built with OpenMP, so that `n_jobs` above 1 means anything."""
    try:
        from fedvar_fast.kernels import _threads
    except ImportError:
        return False
    return bool(_threads.openmp_enabled())


def resolve_n_jobs(n_jobs: int | None) -> int:
    """The number of threads that `n_jobs` stands for.

    None means every core this process may use (OMP_NUM_THREADS and the CPU affinity are respected), a negative
    number counts back from there (-1 all, -2 all but one), a positive one is taken as it is.

    Raises
    ------
    OptionError
        For 0 or something that is no integer.
    """
    if n_jobs is not None and (isinstance(n_jobs, bool) or not hasattr(n_jobs, "__index__") or n_jobs == 0):
        raise OptionError(f"n_jobs={n_jobs!r} is not a number of threads: give 1, 2, ..., -1 for all cores, or None")
    if n_jobs is not None and n_jobs > 0:
        return int(n_jobs)
    if not openmp_enabled():
        return 1
    from fedvar_fast.kernels import _threads

    available = int(_threads.max_threads())
    return available if n_jobs is None else max(1, available + 1 + int(n_jobs))
