"""What travels between a client and the server, and how many numbers it is."""

from __future__ import annotations

from dataclasses import dataclass

from fedvar_fast._typing import FloatArray
from fedvar_fast.lowrank import TangentVector

__all__ = ["ClientSummary", "MomentsMessage", "PairMessage", "StartMessage"]


@dataclass(frozen=True)
class ClientSummary:
    """Sent once, before the rounds.

    Attributes
    ----------
    n_rows : int
        Usable rows ``T_k``; public.
    curvature : float
        ``(2/T_k) ||S_k||_op``, from which the safe step is made.
    """

    n_rows: int
    curvature: float


@dataclass(frozen=True)
class StartMessage:
    """``C_k / T_k`` (d, pd): what a gradient step from zero needs."""

    yx_mean: FloatArray


@dataclass(frozen=True)
class MomentsMessage:
    """``S_k / T_k`` (pd, pd) and ``C_k / T_k`` (d, pd): what the closed form needs."""

    xx_mean: FloatArray
    yx_mean: FloatArray


@dataclass(frozen=True)
class PairMessage:
    """One round's message: ``r (d + pd)`` numbers.

    Attributes
    ----------
    pair : TangentVector
        The client's projected gradient, with noise when the fit is private.
    loss : float or None
        The client's loss at the iterate; never sent when the fit is private.
    """

    pair: TangentVector
    loss: float | None
