"""The simulation design of the paper's Section 5: panels, seeds, moments and the penalties that a rule gives."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.moments import LaggedMoments, lagged_moments
from fedvar_fast.simulate import SimulatedTruth, simulate_arrays

#: Everything random in these experiments follows from this number.
ENTROPY = 20260407
DIM, ORDER = 50, 1
#: ``max_k ||A_k||_op``: the paper only says that ``A_k`` is rescaled until the series are stationary.
SCALE = {"stability": 0.7, "stability_measure": "operator_norm"}
SCALE_WORDS = "scale: max_k ||A_k||_op = 0.7 (stability_measure='operator_norm'), ||A_0||_F : ||Delta_k||_F = 5 : 1"
DESIGN_WORDS = f"d = {DIM}, p = {ORDER}, standard Gaussian innovations, dense Gaussian Delta_k; {SCALE_WORDS}"


@dataclass(frozen=True)
class Cell:
    """What a simulated panel is made of."""

    n_rows: int = 400
    rank: int = 2
    n_clients: int = 5

    def words(self) -> dict[str, Any]:
        return {"n_rows": self.n_rows, "rank": self.rank, "n_clients": self.n_clients, **SCALE}


def seed_of(purpose: str, cell: Cell, replication: int) -> int:
    """A seed that depends on the cell and the number of the replication, not on what ran before.

    `purpose` keeps the pilot panels, on which constants are tuned, apart from those that are evaluated.
    """
    digest = hashlib.sha256(f"{purpose}|{cell.n_rows}|{cell.rank}|{cell.n_clients}".encode()).digest()
    key = (*np.frombuffer(digest[:16], dtype="<u4").tolist(), replication)
    return int(np.random.SeedSequence(ENTROPY, spawn_key=key).generate_state(1, np.uint64)[0])


def panel_of(cell: Cell, seed: int) -> tuple[dict[str, FloatArray], SimulatedTruth]:
    return simulate_arrays(cell.n_clients, DIM, ORDER, cell.n_rows, cell.rank, **SCALE, random_state=seed)


def standardize(series: FloatArray, scale: bool, head: int | None = None) -> FloatArray:
    """Centred, and scaled if asked to, by the first `head` rows (all of them by default)."""
    known = series[:head]
    centred = series - known.mean(axis=0)
    return centred / known.std(axis=0) if scale else centred


def moments_of(series: FloatArray) -> LaggedMoments:
    return lagged_moments(series, ORDER, n_jobs=1)


def nuclear_unit(n_rows: int, width: int = DIM * ORDER) -> float:
    """``2 sqrt(pd/T)``, the rate of the paper's lambda in units of the gradient ``(2/T)(A S - C)``."""
    return 2.0 * math.sqrt(width / n_rows)


def l1_unit(n_rows: int, width: int = DIM * ORDER) -> float:
    """``2 sqrt(log(pd)/T)``, the rate of the paper's omega and varpi, also in units of the gradient."""
    return 2.0 * math.sqrt(math.log(width) / n_rows)


def noise_level_penalties(n_rows: int, dim: int = DIM, width: int = DIM * ORDER) -> tuple[float, float]:
    """The size of the gradient's noise at the truth, nothing tuned: the rule of Table 1.

    ``(2/T) sum e_t x_t'`` with unit variances has operator norm about ``2 (sqrt(d) + sqrt(pd)) / sqrt(T)`` and largest
    entry about ``2 sqrt(2 log(d pd)/T)``: lambda and omega. These are the paper's rates, with ``p = 1`` 2 and 2 times
    the units above.
    """
    nuclear = 2.0 * (math.sqrt(dim) + math.sqrt(width)) / math.sqrt(n_rows)
    return nuclear, 2.0 * math.sqrt(2.0 * math.log(dim * width) / n_rows)
