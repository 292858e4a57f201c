"""Rows of the table about growth: slopes in log-log."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Row
from benchmarks.scaling import AXES, growth


def slope_row(name, repeat):
    axis = AXES[name]
    slope, seconds = growth(axis, repeat)
    times = ", ".join(f"{size:,}: {1e3 * one:.3g}" for size, one in zip(axis.sizes, seconds, strict=True))
    return Row(
        f"growth of {name}", "slope in log-log", "wall", np.nan, np.nan, slope, "exponent {:.2f}",
        at_most=axis.at_most, note=f"ms at {times}",
    )  # fmt: skip


BUILDERS = {f"growth of {name}": lambda repeat, name=name: [slope_row(name, repeat)] for name in AXES}
