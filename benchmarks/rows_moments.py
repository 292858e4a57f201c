"""Rows of the table about lagged moments: against the machine's peak, a design matrix, and in memory."""

from __future__ import annotations

from functools import partial

import numpy as np

import fedvar_fast as fv
from benchmarks import problems
from benchmarks.measure import PEAK, PeakMemory, Row, in_new_process, in_turn
from benchmarks.peers import blas


def flops(n_rows, dim, order):
    """``(2p+1) T d^2``, as `method.md` counts: half a product for lag 0, a product for every other lag."""
    return (2 * order + 1) * n_rows * dim**2


def extra_memory(n_rows, dim, order):
    """MiB beyond the series and beyond the moments themselves; run it in a process of its own."""
    y = problems.series(n_rows, dim)
    fv.lagged_moments(y[:2000], order)  # the buffers that OpenBLAS keeps are not ours
    with PeakMemory() as memory:
        found = fv.lagged_moments(y, order)
    result = sum(a.nbytes for a in (found.xx, found.yx, found.yy)) / 2**20
    return memory.extra_mib - result, result


def moments_rows(n_rows, dim, order, at_least, peak_at_least, repeat):
    """Ours, one large dgemm, design matrix and BLAS, in turn."""
    y = problems.series(n_rows, dim)
    ours, theirs = partial(fv.lagged_moments, y, order), partial(blas.moments, y, order)
    dgemm = PEAK.run
    mine, peak, others = in_turn((ours, dgemm, theirs), repeat).T
    task = f"moments, d={dim}, p={order}, T={n_rows:,}"
    rate = flops(n_rows, dim, order) / float(np.median(mine))
    in_pairs = float(np.median(flops(n_rows, dim, order) / mine / (2.0 * PEAK.size**3 / peak)))
    rows = [
        Row(
            task, "best dgemm of this run", "wall", float(np.median(mine)), float(np.median(peak)),
            lambda: rate / PEAK.best, "{:.2f} of peak", at_least=peak_at_least,
            note=f"{rate / 1e9:.1f} GFLOP/s in direct flops; {in_pairs:.2f} of the dgemm of the same turn",
        ),
        Row(
            task, "design matrix, NumPy BLAS", "wall", float(np.median(mine)), float(np.median(others)),
            float(np.median(others / mine)), at_least=at_least, note=difference(ours(), theirs()),
        ),
    ]  # fmt: skip
    return rows


def difference(found, expected):
    names = ("xx", "yx", "yy")
    apart = max(
        np.max(np.abs(getattr(found, name) - one)) / np.max(np.abs(one))
        for name, one in zip(names, expected, strict=True)
    )
    return f"largest difference {apart:.0e} relative"


def memory_row(n_rows, dim, order):
    extra, result = in_new_process(extra_memory, n_rows, dim, order)
    return Row(
        f"moments, d={dim}, p={order}, T={n_rows:,}", "size of the moments", "", np.nan, np.nan, extra,
        "{:.0f} MiB beyond", at_most=32, note=f"moments {result:.1f} MiB, the series not counted",
    )  # fmt: skip


def large_moments(n_rows, dim, order, at_least, repeat):
    rows = moments_rows(n_rows, dim, order, at_least, 0.85, repeat)
    return [*rows, memory_row(n_rows, dim, order)]


def small_moments(repeat):
    return moments_rows(200_000, 25, 4, 8, None, repeat)


def middle_moments(repeat):
    return [*moments_rows(200_000, 50, 4, 4, None, repeat), memory_row(200_000, 50, 4)]


BUILDERS = {
    "moments, d=100, p=4, T=200,000": lambda repeat: large_moments(200_000, 100, 4, 5, repeat),
    "moments, d=200, p=4, T=100,000": lambda repeat: large_moments(100_000, 200, 4, 5, repeat),
    "moments, d=50, p=12, T=100,000": lambda repeat: large_moments(100_000, 50, 12, 9, repeat),
    "moments, d=25, p=4, T=200,000": small_moments,
    "moments, d=50, p=4, T=200,000": middle_moments,
}
