"""The problems that the benchmarks share, made once from fixed seeds."""

from __future__ import annotations

from functools import cache

import numpy as np

import fedvar_fast as fv


@cache
def series(n_rows, dim, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((n_rows, dim))
    y[1:] += 0.5 * y[:-1]
    return y


@cache
def moments(n_rows, dim, order, seed=0):
    y = series(n_rows, dim, seed)
    return fv.lagged_moments(y, order, center=y.mean(axis=0))


@cache
def sparse_var(n_rows, dim, order, nonzeros=6, seed=0):
    """Scaled series of a stable VAR with about `nonzeros` coefficients a row, and no shared part."""
    panel, _ = fv.simulate_panel(1, dim, order, n_rows, rank=0, nonzeros_per_row=nonzeros, random_state=seed)
    y = panel[panel.clients[0]].values
    return (y - y.mean(axis=0)) / y.std(axis=0)


@cache
def panel(n_clients=5, dim=200, order=2, n_rows=2000, rank=3, seed=0):
    made, _ = fv.simulate_panel(n_clients, dim, order, n_rows, rank=rank, nonzeros_per_row=6, random_state=seed)
    return {name: made[name].values for name in made.clients}


@cache
def low_rank_plus_noise(n_rows, n_columns, rank, seed=0):
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((n_rows, rank)) @ rng.standard_normal((rank, n_columns))
    return signal + 0.1 * rng.standard_normal((n_rows, n_columns))


def factors(matrix, rank):
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return np.ascontiguousarray(u[:, :rank]), s[:rank].copy(), np.ascontiguousarray(vt[:rank].T)
