"""asv suites of the kernels, each with the plain way beside it."""

from __future__ import annotations

import time

import numpy as np
from threadpoolctl import threadpool_limits

import fedvar_fast as fv
from fedvar_fast import kernels
from fedvar_fast.lowrank import FixedRank, singular_value_threshold
from fedvar_fast.solvers.riemannian import clipped_gradient_pair

from . import plain, problems
from .peers import blas, scikit_learn
from .suite import with_peak_memory


@with_peak_memory
class Moments:
    params = ([25, 100], [4, 12])
    param_names = ("dim", "order")

    def setup(self, dim, order):
        self.y = problems.series(20_000, dim)

    def time_ours(self, dim, order):
        fv.lagged_moments(self.y, order)

    def time_design_matrix(self, dim, order):
        blas.moments(self.y, order)

    def time_design_matrix_scipy(self, dim, order):
        blas.moments_scipy(self.y, order)

    def track_relative_difference(self, dim, order):
        ours, (xx, _, _) = fv.lagged_moments(self.y, order), blas.moments(self.y, order)
        return float(np.max(np.abs(ours.xx - xx)) / np.max(np.abs(xx)))


@with_peak_memory
class GradientPair:
    params = ([50, 200], [3])
    param_names = ("dim", "rank")

    def setup(self, dim, rank):
        self.moments = problems.moments(4000, dim, 2)
        self.factors = problems.factors(self.moments.yx, rank)

    def time_ours(self, dim, rank):
        return kernels.gradient_pair(*self.factors, self.moments.xx, self.moments.yx, self.moments.n_rows)

    def time_dense(self, dim, rank):
        return plain.gradient_pair(*self.factors, self.moments.xx, self.moments.yx, self.moments.n_rows)

    def track_relative_difference(self, dim, rank):
        (u, _, v), dense = self.factors, self.time_dense(dim, rank)
        row_part, column_part, _, _ = self.time_ours(dim, rank)
        return float(np.linalg.norm(u @ row_part + column_part @ v.T - dense) / np.linalg.norm(dense))


@with_peak_memory
class Retraction:
    params = ([50, 200], [3])
    param_names = ("dim", "rank")

    def setup(self, dim, rank):
        moments = problems.moments(4000, dim, 2)
        self.factors = problems.factors(moments.yx / moments.n_rows, rank)
        self.pair = kernels.gradient_pair(*self.factors, moments.xx, moments.yx, moments.n_rows)[:2]

    def time_ours(self, dim, rank):
        return kernels.retract(*self.factors, *self.pair, 0.1)

    def time_full_svd(self, dim, rank):
        u, s, v = self.factors
        return plain.truncate((u * s) @ v.T - 0.1 * (u @ self.pair[0] + self.pair[1] @ v.T), rank)

    def track_relative_difference(self, dim, rank):
        (u, s, v), (full_u, full_s, full_v) = self.time_ours(dim, rank), self.time_full_svd(dim, rank)
        dense = (full_u * full_s) @ full_v.T
        return float(np.linalg.norm((u * s) @ v.T - dense) / np.linalg.norm(dense))


@with_peak_memory
class RandomizedSVD:
    params = ([(500, 2000, 10), (1000, 4000, 20)],)
    param_names = ("shape_and_rank",)

    def setup(self, shape_and_rank):
        self.matrix = problems.low_rank_plus_noise(*shape_and_rank)

    def time_ours(self, shape_and_rank):
        return fv.randomized_svd(self.matrix, shape_and_rank[2])

    def time_scikit_learn(self, shape_and_rank):
        return scikit_learn.randomized_svd(self.matrix, shape_and_rank[2])

    def _error(self, u, s, vt):
        best = np.linalg.svd(self.matrix, compute_uv=False)
        return float(np.linalg.norm(self.matrix - (u * s) @ vt) / np.sqrt(np.sum(best[len(s) :] ** 2)) - 1.0)

    def track_excess_error_ours(self, shape_and_rank):
        return self._error(*self.time_ours(shape_and_rank))

    def track_excess_error_scikit_learn(self, shape_and_rank):
        return self._error(*self.time_scikit_learn(shape_and_rank))


@with_peak_memory
class SingularValueThreshold:
    """Of a matrix of rank 5 plus little noise, with the rank guessed right; beside a full decomposition."""

    params = ([(50, 100), (200, 400)],)
    param_names = ("shape",)

    def setup(self, shape):
        rng = np.random.default_rng(0)
        signal = rng.standard_normal((shape[0], 5)) @ rng.standard_normal((5, shape[1]))
        self.matrix = signal + 1e-3 * rng.standard_normal(shape)
        self.threshold = float(np.sqrt(shape[0]))

    def time_ours(self, shape):
        return singular_value_threshold(self.matrix, self.threshold, 5).dense()

    def time_full_svd(self, shape):
        u, s, vt = np.linalg.svd(self.matrix, full_matrices=False)
        return (u * np.maximum(s - self.threshold, 0.0)) @ vt

    def track_relative_difference(self, shape):
        full = self.time_full_svd(shape)
        return float(np.linalg.norm(self.time_ours(shape) - full) / np.linalg.norm(full))


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
