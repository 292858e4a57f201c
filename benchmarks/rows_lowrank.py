"""Rows of the table about Stage I: gradient pairs, clipped ones, and the randomised SVD."""

from __future__ import annotations

from functools import partial

import numpy as np

import fedvar_fast as fv
from benchmarks import plain, problems
from benchmarks.measure import costs, faster, skipped
from benchmarks.peers import scikit_learn
from fedvar_fast import kernels


def pair_row(repeat):
    moments = problems.moments(4000, 200, 2)
    factors = problems.factors(moments.yx, 3)
    arguments = (*factors, moments.xx, moments.yx, moments.n_rows)
    return faster(
        "20 gradient pairs, d=200, p=2, r=3", "dense gradient and projection",
        lambda: [kernels.gradient_pair(*arguments) for _ in range(20)],
        lambda: [plain.gradient_pair(*arguments) for _ in range(20)], repeat,
    )  # fmt: skip


def svd_row(n_rows, n_columns, rank, repeat):
    matrix = problems.low_rank_plus_noise(n_rows, n_columns, rank)
    best = np.sqrt(np.sum(np.linalg.svd(matrix, compute_uv=False)[rank:] ** 2))

    def excess(u, s, vt):
        return float(np.linalg.norm(matrix - (u * s) @ vt) / best - 1.0)

    ours, theirs = partial(fv.randomized_svd, matrix, rank), partial(scikit_learn.randomized_svd, matrix, rank)
    return faster(
        f"randomised SVD, {n_rows:,} x {n_columns:,}, rank {rank}", "scikit-learn", ours, theirs, repeat, at_least=10,
        note=lambda: f"errors over the best possible {excess(*ours()):.0e}, {excess(*theirs()):.0e}",
    )  # fmt: skip


def clipped_row(repeat):
    task, peer = "clipped gradient, T=200,000, d=100, p=4, r=5", "one T x d by d x (p+1)r GEMM"
    if not hasattr(kernels, "clipped_gradient_pair"):
        return skipped(task, peer, "skipped: this version has no clipped gradient")
    from benchmarks.kernels import ClippedGradient

    suite, threads = ClippedGradient(), kernels.resolve_n_jobs(None)
    suite.setup(threads)
    return costs(
        task, peer, partial(suite.time_ours, threads), partial(suite.time_one_gemm, threads), max(repeat, 9), at_most=3
    )


BUILDERS = {
    "20 gradient pairs, d=200, p=2, r=3": lambda repeat: [pair_row(repeat)],
    "randomised SVD, 500 x 2,000, rank 10": lambda repeat: [svd_row(500, 2000, 10, repeat)],
    "randomised SVD, 1,000 x 4,000, rank 20": lambda repeat: [svd_row(1000, 4000, 20, repeat)],
    "clipped gradient, T=200,000, d=100, p=4, r=5": lambda repeat: [clipped_row(repeat)],
}
