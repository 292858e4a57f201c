"""asv suites of growth in d, p, T, K and threads; slopes fitted in log-log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import fedvar_fast as fv
from fedvar_fast import kernels

from . import problems
from .measure import in_turn
from .suite import with_peak_memory


def moments_task(n_rows, dim, order):
    return partial(fv.lagged_moments, problems.series(n_rows, dim), order)


def fit_task(n_clients, n_rows, dim=50):
    panel = dict(list(problems.panel(8, dim, 2, 16_000).items())[:n_clients])
    panel = {name: y[:n_rows] for name, y in panel.items()}
    return lambda: fv.FedVAR(2, 3, n_rounds=30, l1_penalty=0.1, local_tol=1e-6).fit(panel)


@dataclass(frozen=True)
class Axis:
    """Sizes along one axis, the task at a size, and the largest slope that is as promised."""

    sizes: tuple[int, ...]
    task: Callable[[int], Callable[[], object]]
    at_most: float | None = None


AXES = {
    "moments, T": Axis((25_000, 50_000, 100_000, 200_000), lambda size: moments_task(size, 50, 4), 1.1),
    "moments, d": Axis((50, 100, 200, 400), lambda size: moments_task(20_000, size, 4), 2.1),
    "moments, p": Axis((1, 2, 4, 8), lambda size: moments_task(50_000, 50, size)),
    "whole fit, T": Axis((4000, 8000, 16_000), lambda size: fit_task(4, size), 1.1),
    "whole fit, K": Axis((1, 2, 4, 8), lambda size: fit_task(size, 8000), 1.1),
}


def growth(axis: Axis, repeat: int = 3) -> tuple[float, np.ndarray]:
    """Slope of log time against log size, and the median seconds at every size."""
    seconds = np.median(in_turn([axis.task(size) for size in axis.sizes], repeat), axis=0)
    return float(np.polyfit(np.log(axis.sizes), np.log(seconds), 1)[0]), seconds


class Slopes:
    """Exponents: time linear in T and K, moments quadratic in d."""

    params = (list(AXES),)
    param_names = ("axis",)
    timeout = 120

    def setup(self, axis):
        self.axis = AXES[axis]

    def track_slope(self, axis):
        return growth(self.axis)[0]


@with_peak_memory
class MomentsInRows:
    params = ([25_000, 100_000],)
    param_names = ("n_rows",)

    def setup(self, n_rows):
        self.task = moments_task(n_rows, 50, 4)

    def time_moments(self, n_rows):
        self.task()


@with_peak_memory
class MomentsInDim:
    params = ([50, 200],)
    param_names = ("dim",)

    def setup(self, dim):
        self.task = moments_task(20_000, dim, 4)

    def time_moments(self, dim):
        self.task()


@with_peak_memory
class MomentsInOrder:
    params = ([2, 8],)
    param_names = ("order",)

    def setup(self, order):
        self.task = moments_task(50_000, 50, order)

    def time_moments(self, order):
        self.task()


@with_peak_memory
class FitInClients:
    params = ([2, 8],)
    param_names = ("n_clients",)

    def setup(self, n_clients):
        self.task = fit_task(n_clients, 8000)

    def time_fit(self, n_clients):
        self.task()

    def track_largest_gap(self, n_clients):
        return max(self.task().gap_.values())


@with_peak_memory
class Threads:
    params = ([1, 2],)
    param_names = ("n_jobs",)

    def setup(self, n_jobs):
        self.y = problems.series(100_000, 50)

    def time_moments(self, n_jobs):
        fv.lagged_moments(self.y, 4, n_jobs=n_jobs)

    def track_speedup(self, n_jobs):
        """Over one thread, at most the number of cores."""
        tasks = [partial(fv.lagged_moments, self.y, 4, n_jobs=n) for n in (1, n_jobs)]
        alone, together = np.median(in_turn(tasks, 3), axis=0)
        return float(alone / together)

    def track_difference(self, n_jobs):
        """Zero: no result depends on the number of threads."""
        one, all_cores = (fv.lagged_moments(self.y, 4, n_jobs=n) for n in (1, kernels.resolve_n_jobs(None)))
        return float(np.max(np.abs(one.xx - all_cores.xx)))
