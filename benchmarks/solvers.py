"""asv suites of Stage II: d lassos on one Gram matrix."""

from __future__ import annotations

import numpy as np

from fedvar_fast.moments import lagged_moments
from fedvar_fast.solvers.fista import largest_penalty, lasso_on_moments

from . import plain, problems
from .peers import scikit_learn


class FixedSteps:
    """20 FISTA steps, the paper's."""

    params = ([50, 200],)
    param_names = ("dim",)

    def setup(self, dim):
        self.moments = lagged_moments(problems.sparse_var(4000, dim, 2), 2)
        self.penalty = 0.1 * largest_penalty(self.moments)

    def time_ours(self, dim):
        lasso_on_moments(self.moments, self.penalty, tol=None, max_iter=20)

    def time_numpy(self, dim):
        moments = self.moments
        plain.fista(moments.xx, moments.yx, np.diag(moments.yy), moments.n_rows, self.penalty, 20)


class ToGap:
    """To a relative duality gap of 1e-6."""

    params = ([50, 200],)
    param_names = ("dim",)

    def setup(self, dim):
        y = problems.sparse_var(4000, dim, 2)
        self.x, self.response = plain.design(y, 2)
        self.moments = lagged_moments(y, 2)
        self.gram = self.x.T @ self.x
        self.penalty = 0.1 * largest_penalty(self.moments)

    def time_ours(self, dim):
        lasso_on_moments(self.moments, self.penalty, tol=1e-6)

    def time_scikit_learn_gram(self, dim):
        scikit_learn.lasso_gram(self.x, self.response, self.gram, self.penalty, 1e-6)

    def track_gap_ours(self, dim):
        return lasso_on_moments(self.moments, self.penalty, tol=1e-6).gap

    def track_gap_scikit_learn_gram(self, dim):
        coef = scikit_learn.lasso_gram(self.x, self.response, self.gram, self.penalty, 1e-6)
        moments = self.moments
        energy = np.diag(moments.yy)
        return plain.relative_gap(coef, moments.xx, moments.yx, energy, moments.n_rows, self.penalty)
