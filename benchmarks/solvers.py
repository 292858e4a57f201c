"""asv suites of Stage II and of the local estimators: d lassos on one Gram matrix, and two-block ADMM."""

from __future__ import annotations

import numpy as np

from fedvar_fast.moments import lagged_moments
from fedvar_fast.solvers.admm import largest_nuclear_penalty, low_rank_plus_sparse
from fedvar_fast.solvers.fista import largest_penalty, lasso_on_moments

from . import plain, problems
from .peers import loosest, missing
from .rows_lasso import PEERS, Lassos
from .suite import with_peak_memory


@with_peak_memory
class FixedSteps:
    """20 FISTA steps, the paper's, with the step given."""

    params = ([50, 200],)
    param_names = ("dim",)

    def setup(self, dim):
        problem = Lassos(dim, 2)
        self.problem, self.moments, self.penalty = problem, problem.moments, problem.penalty
        self.step = self.moments.n_rows / (2.0 * self.moments.operator_norm())

    def time_ours(self, dim):
        return lasso_on_moments(self.moments, self.penalty, tol=None, max_iter=20, step=self.step).coef

    def time_numpy(self, dim):
        xx, yx, energy = self.moments.xx, self.moments.yx, np.diag(self.moments.yy)
        return plain.fista(xx, yx, energy, self.moments.n_rows, self.penalty, 20, step=self.step)

    def track_gap_ours(self, dim):
        return self.problem.gap(self.time_ours(dim))

    def track_gap_numpy(self, dim):
        return self.problem.gap(self.time_numpy(dim))


@with_peak_memory
class ToGap:
    """To a relative duality gap of 1e-6, from moments."""

    params = ([50, 200], ["coordinate", "fista"])
    param_names = ("dim", "solver")

    def setup(self, dim, solver):
        self.problem = Lassos(dim, 4)
        self.problem.ours(solver)

    def time_ours(self, dim, solver):
        return self.problem.ours(solver)

    def track_gap(self, dim, solver):
        return self.problem.gap(self.time_ours(dim, solver))


@with_peak_memory
class Peers:
    """The same problem by the peers, each at the loosest tolerance that reaches the gap."""

    params = ([50], list(PEERS))
    param_names = ("dim", "peer")
    timeout = 120

    def setup(self, dim, peer):
        if missing(PEERS[peer][0]):
            raise NotImplementedError(missing(PEERS[peer][0]))
        self.problem = Lassos(dim, 4)
        self.tol = loosest(lambda tol, n: self.problem.peer(peer, tol, n), self.problem.gap, 1e-6)

    def time_theirs(self, dim, peer):
        return self.problem.peer(peer, self.tol)

    def track_gap(self, dim, peer):
        return self.problem.gap(self.time_theirs(dim, peer))


@with_peak_memory
class LowRankPlusSparse:
    """Two-block ADMM to a relative duality gap of 1e-4 (paper, equation 4)."""

    params = ([12, 50],)
    param_names = ("dim",)

    def setup(self, dim):
        y = problems.sparse_var(1000, dim, 2)
        self.x, self.response = plain.design(y, 2)
        self.moments = lagged_moments(y, 2)
        self.penalties = 0.3 * largest_nuclear_penalty(self.moments), 0.2 * largest_penalty(self.moments)

    def time_ours(self, dim):
        return low_rank_plus_sparse(self.moments, *self.penalties, tol=1e-4)

    def time_plain(self, dim):
        return plain.low_rank_plus_sparse(self.x, self.response, *self.penalties, 1e-4)

    def track_gap(self, dim):
        return self.time_ours(dim).gap

    def track_relative_difference(self, dim):
        ours, (low, sparse) = self.time_ours(dim), self.time_plain(dim)
        return float(np.linalg.norm(ours.low_rank + ours.sparse - low - sparse) / np.linalg.norm(low + sparse))
