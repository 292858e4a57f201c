"""Neighbouring series built on purpose: for each unit, what moves the releases of a private fit furthest.

No release is moved furthest by the same pair as the others: a second moment by a row turned by a right angle, a
gradient by one reversed. Each unit's first pair uses up nearly all that the ledger counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedvar_fast import FedVAR
from fedvar_fast.estimators import fedvar_private
from fedvar_fast.privacy import Privacy
from fedvar_fast.privacy.accounting import gaussian_mu

EPSILON, DELTA = 4.0, 1e-5
HUGE = 1e6
BOUNDS = (-1.0, 1.0)
OUTLIER = "an outlier in wide bounds"
#: A reversed row does not move second moments: next to nothing of the budget for them.
ODD = {"whitening": 0.005}
UNITS = ("observation", "innovation", "client")


@dataclass(frozen=True)
class Pair:
    """Two neighbouring series of one client, and the fit that they go through.

    Attributes
    ----------
    name : str
    privacy : Privacy
    before, after : ndarray, shape (T_raw, d)
    order, rank, n_rounds : int
    scaled : bool
        Whether centre and scale are released; else they are public, 0 and 1.
    votes : (int, int), optional
        What the two would vote for; then the rank is released, too, and `rank` is not used.
    worst : bool
        Built to use up nearly all that the ledger counts: audited with more transcripts.
    """

    name: str
    privacy: Privacy
    before: np.ndarray
    after: np.ndarray
    order: int = 1
    rank: int = 1
    n_rounds: int = 3
    scaled: bool = True
    votes: tuple[int, int] | None = None
    worst: bool = False

    def model(self, seed):
        return FedVAR(
            self.order, "auto" if self.votes else self.rank, n_rounds=self.n_rounds, center=self.scaled,
            scale=self.scaled, privacy=self.privacy, n_jobs=1, random_state=seed,
        )  # fmt: skip

    @cached_property
    def budget(self):
        """Strength of each purpose, and of all together."""
        purposes = fedvar_private._purposes(self.model(0))
        return self.privacy.mu_by_purpose(purposes), gaussian_mu(self.privacy.epsilon, self.privacy.delta)


def options(unit, **more):
    """Total (EPSILON, DELTA), noise from a seed."""
    return Privacy(EPSILON, DELTA, unit=unit, reproducible=True, **more)


def signs(n_rows, dim, seed=0):
    """Independent signs, the same ones in the three rows about the middle: no coefficient, all values at the ends."""
    y = np.where(np.random.default_rng(seed).random((n_rows, dim)) < 0.5, -1.0, 1.0)
    y[n_rows // 2 - 1 : n_rows // 2 + 2] = 1.0
    return y


def ordinary(n_rows, dim, seed=0, scale=0.3):
    """A stable autoregression with Gaussian innovations."""
    rng = np.random.default_rng(seed)
    y = scale * rng.standard_normal((n_rows, dim))
    for t in range(1, n_rows):
        y[t] += 0.5 * y[t - 1]
    return y


def replaced(y, row, new):
    """The series, and the one with another row."""
    other = y.copy()
    other[row] = new
    return y, other


def propagated(y, row, step, rho, lead=0):
    """The series, and the one whose innovation at `row`, or `lead` rows before it, was moved by `step`."""
    other = y.copy()
    h = np.arange(len(y) - row) + lead
    other[row:] += np.asarray(step) * (rho**h)[:, None]
    return y, other


def observation_pairs():
    flips, middle = signs(301, 1), 150
    corner = replaced(-np.ones((61, 2)), 30, (-1.0, 1.0))[1]
    plain, ends = ordinary(61, 2), signs(61, 2)
    inside, clipped = options("observation", bounds=BOUNDS), options("observation", bounds=BOUNDS, clip=0.5, shares=ODD)
    only = options("observation", bounds=BOUNDS, sensitive=("a",))
    return [
        Pair("signs, a middle row reversed; public units, fixed clip, hardly any whitening",
             clipped, *replaced(flips, middle, -flips[middle]), scaled=False, worst=True),
        Pair("signs of size 1e6, a middle row reversed; public units, no bounds",
             options("observation"), *replaced(HUGE * flips, middle, -HUGE * flips[middle]), scaled=False, worst=True),
        Pair("signs, a middle row reversed", inside, *replaced(flips, middle, -flips[middle])),
        Pair("constant at the lower bounds, a row from corner to corner", inside, *replaced(corner, 30, (1.0, -1.0))),
        Pair("constant, one row far beyond the bounds", inside, *replaced(np.full((61, 2), 0.5), 30, -HUGE)),
        Pair("one row from 1e6 to -1e6, bounds 1", inside, *replaced(replaced(plain, 30, HUGE)[1], 30, -HUGE)),
        Pair("first row reversed", inside, *replaced(ends, 0, -ends[0])),
        Pair("last row reversed", inside, *replaced(ends, 60, -ends[60])),
        Pair("one value turned missing", inside, *replaced(ends, 30, (np.nan, 1.0))),
        Pair("a row turned missing, two lags, rank 2", inside, *replaced(ordinary(61, 3), 30, np.nan), order=2, rank=2),
        Pair("one sensitive column of two, two lags", only, *replaced(ends, 30, (-1.0, 1.0)), order=2),
        Pair("an ordinary row for another", inside, *replaced(plain, 30, plain[10])),
        Pair(OUTLIER, options("observation", bounds=(-50.0, 50.0)), *replaced(plain, 30, 50.0)),
        Pair("a row reversed, the rank's vote changes, too", inside, *replaced(ends, 30, -1.0), votes=(1, 2)),
    ]  # fmt: skip


def innovation_pairs():
    flips, middle, root = signs(301, 1), 150, math.sqrt(2.0)
    plain, along, holes = ordinary(61, 2), signs(1001, 1), ordinary(61, 2)
    along[500:510] = 1.0
    holes[33, 0] = np.nan

    def keeps(bound, rho, bounds=BOUNDS, **more):
        return options("innovation", innovation_bound=bound, stability=(1.0, rho), bounds=bounds, **more)

    return [
        Pair("signs, nothing propagates, a middle one; public units, fixed clip, hardly any whitening",
             keeps(2.0, 0.0, clip=0.5, shares=ODD), *propagated(flips, middle, -2.0, 0.0), scaled=False, worst=True),
        Pair("away from the bound, half is left after a row; public units",
             keeps(0.5, 0.5), *propagated(along, 500, -0.5, 0.5), scaled=False),
        Pair("the same, scaled", keeps(0.5, 0.5), *propagated(along, 500, -0.5, 0.5)),
        Pair("first row", keeps(root, 0.5), *propagated(plain, 0, (1.0, 1.0), 0.5)),
        Pair("before the first row", keeps(root, 0.5), *propagated(plain, 0, (1.0, 1.0), 0.5, lead=1)),
        Pair("last row", keeps(root, 0.5), *propagated(plain, 60, (1.0, -1.0), 0.5)),
        Pair("constant at a bound, two lags",
             keeps(2.0 * root, 0.5), *propagated(np.ones((61, 2)), 30, (-2.0, -2.0), 0.5), order=2),
        Pair("from beyond one bound to beyond the other", keeps(4.0, 0.5), *propagated(2.0 * flips, middle, -4.0, 0.5)),
        Pair("values missing in both", keeps(root, 0.5), *propagated(holes, 30, (1.0, 1.0), 0.5)),
        Pair(OUTLIER, keeps(50.0 * root, 0.5, (-50.0, 50.0)), *propagated(plain, 30, (50.0, 50.0), 0.5)),
    ]  # fmt: skip


def client_pairs():
    least = np.array([[1.0], [HUGE]])
    split = np.tile([1.0, HUGE, np.nan], 20)[:, None]
    inside, constant = options("client", bounds=BOUNDS), np.ones((40, 2))
    turns, few = np.resize([[1.0], [-1.0]], (40, 1)), signs(40, 2)
    few[2:] = np.nan
    return [
        Pair("two rows, the last one reversed; public units, fixed clip, hardly any whitening",
             options("client", clip=0.5, shares=ODD), least, least * [[1.0], [-1.0]], scaled=False, worst=True),
        Pair("1, 1e6 between missing rows, the large ones reversed; public units",
             options("client"), split, np.where(split == HUGE, -HUGE, split), scaled=False),
        Pair("constant at the lower bounds, constant at the upper", inside, -constant, constant),
        Pair("constant, alternating from bound to bound", inside, constant, constant * turns),
        Pair("signs, all missing but two rows", inside, signs(40, 2), few),
        Pair("one series for another, beyond the bounds", inside, ordinary(40, 2), HUGE * ordinary(40, 2, 1)),
    ]  # fmt: skip


def all_pairs():
    """Every pair; those of a unit begin with the worst."""
    return [*observation_pairs(), *innovation_pairs(), *client_pairs()]
