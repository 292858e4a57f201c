"""asv suites of the kernels, each with the plain way beside it."""

from __future__ import annotations

import time

import numpy as np
from sklearn.utils.extmath import randomized_svd as sklearn_randomized_svd
from threadpoolctl import threadpool_limits

import fedvar_fast as fv
from fedvar_fast import kernels
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.solvers.riemannian import clipped_gradient_pair

from . import plain, problems


class Moments:
    params = ([25, 50, 100], [4])
    param_names = ("dim", "order")

    def setup(self, dim, order):
        self.y = problems.series(50_000, dim)

    def time_ours(self, dim, order):
        fv.lagged_moments(self.y, order)

    def time_design_matrix(self, dim, order):
        plain.moments(self.y, order)

    def peakmem_ours(self, dim, order):
        fv.lagged_moments(self.y, order)

    def peakmem_design_matrix(self, dim, order):
        plain.moments(self.y, order)


class GradientPair:
    params = ([50, 200], [3])
    param_names = ("dim", "rank")

    def setup(self, dim, rank):
        self.moments = problems.moments(4000, dim, 2)
        self.factors = problems.factors(self.moments.yx, rank)

    def time_ours(self, dim, rank):
        kernels.gradient_pair(*self.factors, self.moments.xx, self.moments.yx, self.moments.n_rows)

    def time_dense(self, dim, rank):
        plain.gradient_pair(*self.factors, self.moments.xx, self.moments.yx, self.moments.n_rows)


class Retraction:
    params = ([50, 200], [3])
    param_names = ("dim", "rank")

    def setup(self, dim, rank):
        moments = problems.moments(4000, dim, 2)
        self.factors = problems.factors(moments.yx / moments.n_rows, rank)
        self.pair = kernels.gradient_pair(*self.factors, moments.xx, moments.yx, moments.n_rows)[:2]

    def time_ours(self, dim, rank):
        kernels.retract(*self.factors, *self.pair, 0.1)

    def time_full_svd(self, dim, rank):
        u, s, v = self.factors
        plain.truncate((u * s) @ v.T - 0.1 * (u @ self.pair[0] + self.pair[1] @ v.T), rank)


class RandomizedSVD:
    params = ([(500, 2000, 10)],)
    param_names = ("shape_and_rank",)

    def setup(self, shape_and_rank):
        self.matrix = problems.low_rank_plus_noise(*shape_and_rank)

    def time_ours(self, shape_and_rank):
        fv.randomized_svd(self.matrix, shape_and_rank[2])

    def time_sklearn(self, shape_and_rank):
        sklearn_randomized_svd(self.matrix, shape_and_rank[2], random_state=0)

    def time_full(self, shape_and_rank):
        np.linalg.svd(self.matrix, full_matrices=False)

    def _error(self, u, s, vt, rank):
        best = np.linalg.svd(self.matrix, compute_uv=False)
        return float(np.linalg.norm(self.matrix - (u * s) @ vt) / np.sqrt(np.sum(best[rank:] ** 2)) - 1.0)

    def track_excess_error_ours(self, shape_and_rank):
        return self._error(*fv.randomized_svd(self.matrix, shape_and_rank[2]), shape_and_rank[2])

    def track_excess_error_sklearn(self, shape_and_rank):
        found = sklearn_randomized_svd(self.matrix, shape_and_rank[2], random_state=0)
        return self._error(*found, shape_and_rank[2])


class ClippedGradient:
    """Beside one product of the series with a d x (p+1) r matrix, on the same number of threads."""

    params = ([1, 2],)
    param_names = ("n_jobs",)

    def setup(self, n_jobs):
        order, rank = 4, 5
        self.y = problems.series(200_000, 100)
        self.center, self.scale = self.y.mean(axis=0), self.y.std(axis=0)
        rng = np.random.default_rng(0)
        self.point = FixedRank.from_dense(0.1 * rng.standard_normal((100, 400)), rank)
        self.order, self.clip_norm = order, 100.0
        self.thin = rng.standard_normal((100, (order + 1) * rank))
        self.product = np.empty((len(self.y), (order + 1) * rank))

    def time_ours(self, n_jobs):
        clipped_gradient_pair(self.point, self.y, self.center, self.scale, self.order, self.clip_norm, n_jobs)

    def peakmem_ours(self, n_jobs):
        self.time_ours(n_jobs)

    def time_one_gemm(self, n_jobs):
        with threadpool_limits(n_jobs, "blas"):
            np.matmul(self.y, self.thin, out=self.product)

    def track_ratio_to_one_gemm(self, n_jobs):
        """Median of nine ratios, taken in turn."""
        return clipped_row(self, n_jobs)["ratio"]


def clipped_row(suite=None, n_jobs=1, repeat=9):
    """Medians of ours and one GEMM in turn, wall and CPU seconds: printed, and returned."""
    if suite is None:
        suite = ClippedGradient()
        suite.setup(n_jobs)
    rounds = []
    for _ in range(repeat + 1):
        clocks = [(time.perf_counter(), time.process_time())]
        for task in (suite.time_ours, suite.time_one_gemm):
            task(n_jobs)
            clocks.append((time.perf_counter(), time.process_time()))
        rounds.append(np.diff(clocks, axis=0))
    (ours, ours_cpu), (gemm, gemm_cpu) = np.median(rounds[1:], axis=0)
    ratio, ratio_cpu = np.median([one[0] / one[1] for one in rounds[1:]], axis=0)
    print(
        f"clipped gradient, T=200,000, d=100, p=4, r=5, {n_jobs} thread(s): {1e3 * ours:.0f} ms, one GEMM "
        f"{1e3 * gemm:.0f} ms, ratio {ratio:.2f}; CPU {1e3 * ours_cpu:.0f} and {1e3 * gemm_cpu:.0f} ms, {ratio_cpu:.2f}"
    )
    return {"ours": ours, "one_gemm": gemm, "ratio": ratio, "cpu_ratio": ratio_cpu}
