"""The rank of the shared part: the ridge-type ratio rule of each client, and the clients' vote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import OptionError
from fedvar_fast.moments import check_order

__all__ = ["RankChoice", "select_rank", "vote"]

#: The rule looks at no more than this many singular values unless it is told to.
_DEFAULT_MAX_RANK = 10
#: Singular values below this fraction of the ridge are the rounding of a zero matrix: their ratios mean nothing.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class RankChoice:
    """What the ratio rule found for one client.

    Attributes
    ----------
    rank : int or None
        None: the matrix is zero, so the client does not vote.
    ratios : ndarray, shape (rbar - 1,)
        ``(s_{r+1} + c) / (s_r + c)`` for ``r = 1 .. rbar - 1``; empty when ``dim = 1``.
    singular_values : ndarray, shape (min(d, pd),)
        Those given, zeros behind them.
    ridge : float
        The ``c`` of the rule.
    """

    rank: int | None
    ratios: FloatArray
    singular_values: FloatArray
    ridge: float


def select_rank(
    singular_values: npt.ArrayLike, n_rows: int, order: int, dim: int, *, max_rank: int | None = None
) -> RankChoice:
    """Ridge-type ratio rule on the singular values of one client's local low-rank part (paper, eq. (9)).

    ``r = argmin_{1 <= r <= rbar - 1} (s_{r+1} + c) / (s_r + c)``,  ``c = 0.01 sqrt(p d / T)``;
    among equal ratios the smallest ``r``.

    Parameters
    ----------
    singular_values : array, shape (m,)
        Largest first, of the matrix ``(d, pd)``; those left out (``m < d``) are taken as zero.
    n_rows : int
        ``T``, the usable rows behind the estimate.
    order, dim : int
        ``p`` and ``d``.
    max_rank : int, optional
        ``rbar``; ``min(d, 10)`` by default. The last ratio is that of ``rbar - 1``, so the ranks that can be chosen
        are ``1 .. rbar - 1``. With one variable (``d = 1``) there is no ratio: the rank is 1 unless the matrix is zero.

    Returns
    -------
    RankChoice
        With ``rank=None`` for a zero matrix: such a client does not vote.

    Raises
    ------
    OptionError
        Singular values that are unsorted, negative, not finite or more than ``d``; ``n_rows`` below 1; ``max_rank``
        outside ``2 .. d``.
    """
    width = check_order(order) * _whole("dim", dim)
    ridge = 1e-2 * math.sqrt(width / _whole("n_rows", n_rows))
    values = _checked_values(singular_values, dim)
    highest = _checked_max_rank(max_rank, dim)
    head = values[:highest] + ridge
    ratios = head[1:] / head[:-1]
    if values[0] <= _ROUNDING * ridge:
        return RankChoice(None, ratios, values, ridge)
    return RankChoice(1 + int(np.argmin(ratios)) if len(ratios) else 1, ratios, values, ridge)


def vote(ranks: Mapping[str, int | None]) -> int:
    """The mode over the clients, the smaller one among equals (paper, eq. (10)).

    Parameters
    ----------
    ranks : mapping of client to int or None
        None: this client does not vote.

    Returns
    -------
    int
        0 when no client votes: then nothing is shared.

    Raises
    ------
    OptionError
        A vote that is no whole number of 0 or more.
    """
    for client, rank in ranks.items():
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 0):
            raise OptionError(f"client {client!r} votes for rank {rank!r}: a whole number of 0 or more, or None")
    counts = Counter(int(rank) for rank in ranks.values() if rank is not None)
    return min(counts, key=lambda rank: (-counts[rank], rank), default=0)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name}={value!r} is no whole number of 1 or more")
    return int(value)


def _checked_values(given: npt.ArrayLike, dim: int) -> FloatArray:
    """The singular values, zeros behind them, read-only."""
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 1 or len(values) > dim:
        raise OptionError(f"singular_values has shape {values.shape}: give at most dim={dim} numbers in one row")
    if not np.isfinite(values).all() or (values < 0).any():
        raise OptionError("singular_values must be finite numbers of 0 or more, as an SVD gives them")
    if (np.diff(values) > 0).any():
        raise OptionError("singular_values are not sorted: give the largest first")
    padded = np.zeros(dim)
    padded[: len(values)] = values
    padded.flags.writeable = False
    return padded


def _checked_max_rank(max_rank: int | None, dim: int) -> int:
    if max_rank is None or dim < 2:
        return min(dim, _DEFAULT_MAX_RANK)
    if isinstance(max_rank, bool) or not isinstance(max_rank, int | np.integer) or not 2 <= max_rank <= dim:
        raise OptionError(f"max_rank={max_rank!r}: with {dim} variables it is a whole number from 2 to {dim}")
    return int(max_rank)
