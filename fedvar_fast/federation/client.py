"""The client's side: pure functions of its own moments and of what the server sent."""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.federation.messages import ClientSummary, MomentsMessage, PairMessage, StartMessage
from fedvar_fast.lowrank import FixedRank, TangentVector
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.privacy.mechanism import noisy_pair
from fedvar_fast.solvers.fista import LassoResult, lasso_on_moments
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState

__all__ = ["moments_message", "pair_message", "personal_part", "start_message", "summarize"]


def summarize(moments: LaggedMoments) -> ClientSummary:
    """``T_k`` and ``(2/T_k) ||S_k||_op``."""
    return ClientSummary(moments.n_rows, 2.0 * moments.operator_norm() / moments.n_rows)


def start_message(moments: LaggedMoments) -> StartMessage:
    """``C_k / T_k``."""
    return StartMessage(moments.yx / moments.n_rows)


def moments_message(moments: LaggedMoments) -> MomentsMessage:
    """``S_k / T_k`` and ``C_k / T_k``."""
    return MomentsMessage(moments.xx / moments.n_rows, moments.yx / moments.n_rows)


def pair_message(
    component: LowRankComponent,
    moments: LaggedMoments,
    state: LowRankState,
    sigma: float = 0.0,
    generator: np.random.Generator | None = None,
) -> PairMessage:
    """The client's projected gradient; with ``sigma > 0`` plus noise of law ``P_T(W)``, and without its loss."""
    pair, loss = component.message(moments, state)
    if generator is None:
        return PairMessage(pair, loss)
    row_part, column_part = noisy_pair(pair.row_part, pair.column_part, state.point.u, sigma, generator)
    return PairMessage(TangentVector(row_part, column_part), None)


def personal_part(
    moments: LaggedMoments,
    shared: FloatArray | FixedRank,
    l1_penalty: float,
    *,
    n_iter: int = 20,
    tol: float | None = None,
    max_iter: int = 10_000,
    curvature: float | None = None,
    n_jobs: int | None = None,
) -> LassoResult:
    """Stage II: ``Delta_k`` given the shared part. It never leaves the client.

    Parameters
    ----------
    moments : LaggedMoments
    shared : FixedRank, or ndarray of shape (d, pd)
    l1_penalty : float
    n_iter : int
        FISTA steps, when there is no tolerance.
    tol : float, optional
        Relative duality gap to reach instead, in at most `max_iter` steps.
    curvature : float, optional
        ``(2/T_k) ||S_k||_op`` where it is known already.
    """
    step = 1.0 / curvature if curvature else None
    return lasso_on_moments(
        moments, l1_penalty, shared, tol, n_iter if tol is None else max_iter, step=step, n_jobs=n_jobs
    )
