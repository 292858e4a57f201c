"""asv suites of the kernels, each with the plain way beside it."""

from __future__ import annotations

import numpy as np
from sklearn.utils.extmath import randomized_svd as sklearn_randomized_svd

import fedvar_fast as fv
from fedvar_fast import kernels

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
