"""Rows of the table about privacy: what a private round costs, whitened rounds, and the accountant's known value."""

from __future__ import annotations

import math

import numpy as np

import fedvar_fast as fv
from benchmarks import problems
from benchmarks.measure import Row, costs
from fedvar_fast.federation.curator import Curator
from fedvar_fast.federation.inprocess import SharedOptions, fit_shared
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.privacy import Privacy, noise_multiplier
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.sensitivity import Neighbours
from fedvar_fast.scaling import Scaling
from fedvar_fast.solvers.riemannian import clipped_gradient_pair, exact_reduced_rank
from fedvar_fast.solvers.whitening import whitener

#: 100 equal rounds at total (2, 1e-5), from an independent accountant.
KNOWN_MULTIPLIER = 19.938124456


def round_row(repeat, n_rows=200_000, dim=100, rank=5):
    """One client's noisy message in whitened coordinates beside the compiled clipped gradient alone."""
    y = problems.series(n_rows, dim)
    privacy = Privacy(2.0, 1e-5, bounds=(-8.0, 8.0))
    strength = privacy.mu_by_purpose(["whitening", "start", "rounds", "clip"])
    curator = Curator("a", y, 1, privacy, Neighbours("observation", n_rows, dim, 1), strength, Ledger(), None)
    center, scale = np.zeros(dim), np.ones(dim)
    curator.take_scaling(Scaling.given(center, scale, lower=[-8.0] * dim, upper=[8.0] * dim), np.arange(dim))
    moments = fv.lagged_moments(y, 1)
    white = whitener(moments.xx / moments.n_rows, "full")
    squares = curator.row_squares(white)
    point = FixedRank(*problems.factors(moments.yx / moments.n_rows, rank))
    clip_norm = math.sqrt(2.0 * rank * dim)
    mu = curator.strength["rounds"] / math.sqrt(8)
    numbers = iter(range(1, 1_000_000))
    return costs(
        f"private round, T={n_rows:,}, d={dim}, p=1, r={rank}", "clipped gradient kernel alone",
        lambda: curator.release_pair(next(numbers), point, white, squares, clip_norm, mu, mu / 4.0),
        lambda: clipped_gradient_pair(point, y, center, scale, 1, clip_norm), max(repeat, 9), at_most=1.5,
        note=f"a message is {rank * 2 * dim:,} numbers",
    )  # fmt: skip


def whitened_row():
    """Error of A_0 after five whitened rounds over that of the exact optimum; plain rounds that reach 1.01 of it."""
    panel, truth = fv.simulate_panel(
        5, 50, 1, 4000, 2, stability=0.8, stability_measure="spectral_radius", random_state=2
    )
    moments = {name: fv.lagged_moments(one.values - one.values.mean(axis=0), 1) for name, one in panel.items()}
    n_rows = sum(one.n_rows for one in moments.values())
    xx, yx = (sum(getattr(one, part) for one in moments.values()) / n_rows for part in ("xx", "yx"))

    def error(coef):
        return float(np.linalg.norm(coef - truth.A0))

    exact = error(exact_reduced_rank(xx, yx, 2).dense())
    white = error(fit_shared(moments, SharedOptions(2, n_rounds=5, precondition="full")).point.dense())
    plain = next(
        (n for n in (5, 10, 20, 50, 100, 150, 200, 300, 400)
         if error(fit_shared(moments, SharedOptions(2, n_rounds=n)).point.dense()) <= 1.01 * exact), None,
    )  # fmt: skip
    return Row(
        "five whitened rounds, d=50, K=5, T_k=4,000", "error at the exact optimum", "", math.nan, math.nan,
        white / exact, "{:.4f}x its error", at_most=1.01,
        note=f"condition number {np.linalg.cond(xx):.0f}; plain rounds that reach 1.01x: {plain or 'over 400'}",
    )  # fmt: skip


def accountant_row():
    found = noise_multiplier(2.0, 1e-5, 100)
    return Row(
        "noise multiplier, 100 rounds, total (2, 1e-5)", "known value", "", math.nan, math.nan,
        abs(found - KNOWN_MULTIPLIER), "{:.1e} apart", at_most=1e-8, note=f"{found:.9f}",
    )  # fmt: skip


BUILDERS = {
    "private round, T=200,000, d=100, p=1, r=5": lambda repeat: [round_row(repeat)],
    "five whitened rounds, d=50, K=5, T_k=4,000": lambda repeat: [whitened_row()],
    "noise multiplier": lambda repeat: [accountant_row()],
}
