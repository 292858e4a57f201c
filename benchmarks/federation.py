"""asv suites of one round of Stage I: a client's message, the same with noise, and the server's step."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fedvar_fast.federation import client, server
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState

from . import plain, problems
from .suite import with_peak_memory


class _Problem:
    """One client's moments and where the rounds stand."""

    def __init__(self, dim, rank):
        self.moments = problems.moments(4000, dim, 2)
        self.state = LowRankState(FixedRank.from_dense(self.moments.yx / self.moments.n_rows, rank))
        self.component = LowRankComponent(self.moments.n_rows / (2.0 * self.moments.operator_norm()))

    @cached_property
    def dense(self):
        """The projected gradient as a matrix, the plain way."""
        point, moments = self.state.point, self.moments
        return plain.gradient_pair(point.u, point.s, point.v, moments.xx, moments.yx, moments.n_rows)

    def relative(self, pair):
        return float(np.linalg.norm(self.state.point.embed(pair) - self.dense) / np.linalg.norm(self.dense))


@with_peak_memory
class Message:
    """A client's pair from its moments; noise of law P_T(W) on top."""

    params = ([50, 200], [3, 10])
    param_names = ("dim", "rank")

    def setup(self, dim, rank):
        self.problem = _Problem(dim, rank)
        self.generator = np.random.default_rng(0)

    def _message(self, sigma=0.0, generator=None):
        problem = self.problem
        return client.pair_message(problem.component, problem.moments, problem.state, sigma, generator)

    def time_plain(self, dim, rank):
        return self._message()

    def time_private(self, dim, rank):
        return self._message(1e-3, self.generator)

    def track_relative_difference(self, dim, rank):
        return self.problem.relative(self._message().pair)

    def track_numbers_sent(self, dim, rank):
        return self._message().pair.n_numbers


@with_peak_memory
class ServerStep:
    """Aggregation of K messages and retraction."""

    params = ([50, 200], [5, 50])
    param_names = ("dim", "n_clients")

    def setup(self, dim, n_clients):
        self.problem = problem = _Problem(dim, 3)
        message = client.pair_message(problem.component, problem.moments, problem.state)
        self.messages, self.weights = [message] * n_clients, np.full(n_clients, 1.0 / n_clients)

    def time_aggregate_and_retract(self, dim, n_clients):
        return server.aggregate_round(self.problem.component, self.problem.state, self.messages, self.weights)

    def track_relative_difference(self, dim, n_clients):
        """To a full decomposition of the dense step."""
        problem = self.problem
        state, _ = self.time_aggregate_and_retract(dim, n_clients)
        u, s, v = plain.truncate(problem.state.point.dense() - problem.component.step * problem.dense, 3)
        dense = (u * s) @ v.T
        return float(np.linalg.norm(state.point.dense() - dense) / np.linalg.norm(dense))
