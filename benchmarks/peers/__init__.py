"""One adapter per peer library: the same objective, the same tolerance, the same answer's shape.

A lasso adapter is a function ``(x, response, l1_penalty, tol)`` that returns the minimisers (d, pd) of
``(1/T)||y - X w||^2 + l1_penalty ||w||_1``, a row for each column of `response`. What `tol` means is the library's own;
`loosest` finds the one with which the answer is within a given relative duality gap. Libraries are imported when they
are used, so that a missing one costs its own rows only.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module


@cache
def missing(library: str) -> str:
    """Why a peer cannot be used, in one line; empty where it can."""
    try:
        import_module(library)
    except ModuleNotFoundError as error:
        if error.name == library:
            return f"skipped: {library} is not installed (pip install '.[bench]' brings it)"
        return f"skipped: {library} cannot be imported ({error})"
    except Exception as error:  # A peer that does not fit this NumPy or Numba fails in its own ways.
        return f"skipped: {library} cannot be imported ({type(error).__name__}: {error})"
    return ""


def loosest(solve, gap, target: float, n_first: int = 20) -> float:
    """The largest power of ten that, as `tol`, brings the answer within `target`.

    ``solve(tol, n)`` solves the first n problems (None: all), ``gap(coef)`` measures. Tried on a few problems first.
    """
    tolerances = [10.0**-k for k in range(2, 13)]
    few = next((i for i, tol in enumerate(tolerances) if gap(solve(tol, n_first)) <= target), None)
    for tol in tolerances[few:] if few is not None else ():
        if gap(solve(tol, None)) <= target:
            return tol
    raise RuntimeError(f"no tolerance down to {tolerances[-1]:.0e} brings the gap to {target:.0e}")
