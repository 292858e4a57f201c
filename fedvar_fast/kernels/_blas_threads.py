"""Holding both OpenBLAS pools (NumPy's and SciPy's) at one thread while our own loops run in parallel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache

import scipy.linalg.cython_blas  # noqa: F401  (loads SciPy's OpenBLAS, so that the controller finds it)
from threadpoolctl import ThreadpoolController


class _Hold:
    """How many callers hold the pools: the first lowers them, the last puts back what it found."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self.limiter: contextlib.AbstractContextManager[object] | None = None


_HOLD = _Hold()


@cache
def _controller() -> ThreadpoolController:
    # Finding the libraries reads the process's memory map, some milliseconds: once is enough.
    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit every BLAS to one thread inside the block; callers may nest and overlap in any thread."""
    with _HOLD.lock:
        if _HOLD.holders == 0:
            limiter = _controller().limit(limits=1)
            limiter.__enter__()
            _HOLD.limiter = limiter
        _HOLD.holders += 1
    try:
        yield
    finally:
        with _HOLD.lock:
            _HOLD.holders -= 1
            if _HOLD.holders == 0 and _HOLD.limiter is not None:
                _HOLD.limiter.__exit__(None, None, None)
                _HOLD.limiter = None
