"""The server's side: pure functions of the clients' messages."""

from __future__ import annotations

import math

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.exceptions import OptionError
from fedvar_fast.federation.messages import ClientSummary, MomentsMessage, PairMessage, StartMessage
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState, exact_reduced_rank

__all__ = [
    "aggregate_round",
    "client_weights",
    "closed_form",
    "default_rounds",
    "given_start",
    "require_tangent_space",
    "safe_step",
    "spectral_start",
]

_ZERO_START = "the start of Stage I is the zero matrix, which has no tangent space: give another init"


def client_weights(summaries: list[ClientSummary]) -> FloatArray:
    """``T_k / T``."""
    rows = np.array([summary.n_rows for summary in summaries], dtype=np.float64)
    return rows / rows.sum()


def default_rounds(n_rows: int) -> int:
    """``ceil(10 log T)``, T the usable rows of all clients (paper, section 3.3)."""
    return max(1, math.ceil(10.0 * math.log(n_rows)))


def safe_step(summaries: list[ClientSummary], weights: FloatArray, ridge: float = 0.0) -> float:
    """``1/H``, ``H = sum_k w_k (2/T_k)||S_k||_op + 2 ridge``: the loss cannot rise with it."""
    bound = float(weights @ np.array([summary.curvature for summary in summaries])) + 2.0 * ridge
    if not bound > 0:
        raise OptionError("every variable of every client is constant: there is nothing to learn from")
    return 1.0 / bound


def spectral_start(messages: list[StartMessage], weights: FloatArray, step: float, rank: int) -> FixedRank:
    """``SVD_r(2 step sum_k w_k C_k/T_k)``: one gradient step from zero."""
    mean = sum(weight * message.yx_mean for weight, message in zip(weights, messages, strict=True))
    return FixedRank.from_dense(np.ascontiguousarray(2.0 * step * mean), rank)


def given_start(matrix: AnyArray, dim: int, width: int) -> FloatArray:
    """The user's start of Stage I, (d, pd), as float64.

    Raises
    ------
    OptionError
        A matrix of another shape, not finite, or all zero.
    """
    given = np.asarray(matrix, dtype=np.float64)
    if given.shape != (dim, width) or not np.isfinite(given).all():
        raise OptionError(f"init must be a finite matrix of shape {(dim, width)}, not one of shape {given.shape}")
    if not given.any():
        raise OptionError(_ZERO_START)
    return given


def require_tangent_space(start: FixedRank) -> FixedRank:
    """The point itself; OptionError where it is the zero matrix."""
    if not start.s[0] > 0:
        raise OptionError(_ZERO_START)
    return start


def closed_form(messages: list[MomentsMessage], weights: FloatArray, rank: int, ridge: float) -> FixedRank:
    """The exact minimiser of the pooled loss (plus ridge) over rank `rank`."""
    xx = sum(weight * message.xx_mean for weight, message in zip(weights, messages, strict=True))
    yx = sum(weight * message.yx_mean for weight, message in zip(weights, messages, strict=True))
    return exact_reduced_rank(np.ascontiguousarray(xx), np.ascontiguousarray(yx), rank, ridge)


def aggregate_round(
    component: LowRankComponent, state: LowRankState, messages: list[PairMessage], weights: FloatArray
) -> tuple[LowRankState, float | None]:
    """The next iterate, and the pooled loss at the old one where the clients sent theirs."""
    gradient = component.aggregate([message.pair for message in messages], weights)
    losses = [message.loss for message in messages if message.loss is not None]
    loss = float(weights @ np.array(losses)) if len(losses) == len(messages) else None
    return component.advance(state, gradient), loss
