"""Holding both OpenBLAS pools (NumPy's and SciPy's) at one thread while our own loops run in parallel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import scipy.linalg.cython_blas  # noqa: F401  (loads SciPy's OpenBLAS, so that the controller finds it)
from threadpoolctl import ThreadpoolController


class _Hold:
    """How many callers hold the process-wide pools, and what the first of them found."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders = 0
        self.found: list[int | None] = []


_HOLD = _Hold()


@cache
def _pools() -> tuple[list[Any], list[Any]]:
    """BLAS libraries whose limit is the process's, and those whose limit is each thread's own (OpenMP layer).

    Finding the libraries reads the process's memory map, some milliseconds: once is enough.
    """
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [one for one in libraries if getattr(one, "threading_layer", None) == "openmp"]
    return [one for one in libraries if one not in own], own


def _set(libraries: list[Any], limits: list[int | None]) -> None:
    for library, limit in zip(libraries, limits, strict=True):
        if limit is not None:
            library.set_num_threads(limit)
        # Since 3.7 threadpoolctl lets one Python thread at a time move a process-wide limit, and keeps it for that
        # thread. Ours may be put back by another thread than the one that moved it: let go at once.
        release = getattr(type(library), "clear_controlling_thread", None)
        if release is not None:
            release()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit every BLAS to one thread inside the block; callers may nest and overlap in any thread.

    The first caller lowers the process-wide pools, the last one puts back what the first found. Where another
    Python thread holds a limit of its own through threadpoolctl, that limit stands.
    """
    shared, own = _pools()
    with _HOLD.lock:
        if _HOLD.holders == 0:
            _HOLD.found = [one.get_num_threads() for one in shared]
            _set(shared, [1] * len(shared))
        _HOLD.holders += 1
    found = [one.get_num_threads() for one in own]
    _set(own, [1] * len(own))
    try:
        yield
    finally:
        _set(own, found)
        with _HOLD.lock:
            _HOLD.holders -= 1
            if _HOLD.holders == 0:
                _set(shared, _HOLD.found)
