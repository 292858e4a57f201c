"""Rows of the table about whole fits: beside plain NumPy, and beside the time of their moments alone."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import fedvar_fast as fv
from benchmarks import plain, problems
from benchmarks.measure import PeakMemory, Row, costs, faster, in_new_process, skipped, timed
from benchmarks.peers import missing, statsmodels
from fedvar_fast.solvers.fista import largest_penalty
from fedvar_fast.tuning import RollingOrigins, penalty_grid, tune_low_rank_sparse

OPTIONS = {"n_rounds": 50, "local_iter": 100, "l1_penalty": 0.1, "local_tol": 1e-6}
SHARED = Path(__file__).resolve().parents[2] / "shared"


def plain_row(repeat):
    panel = problems.panel()
    theirs = partial(plain.fit, panel, 2, 3, OPTIONS["n_rounds"], OPTIONS["l1_penalty"], OPTIONS["local_iter"], None)

    def ours():
        return fv.FedVAR(2, 3, **OPTIONS).fit(panel)

    def note():
        model, (shared, deltas) = ours(), theirs()
        apart = max(float(np.max(np.abs(model.deltas_[name] - delta))) for name, delta in deltas.items())
        return (
            f"A_0 differs by {np.max(np.abs(model.A0_ - shared)):.0e}, deltas by {apart:.0e}, "
            f"largest gap {max(model.gap_.values()):.0e}"
        )

    return faster(
        "whole fit, d=200, p=2, K=5, T_k=2,000",
        "plain NumPy",
        ours,
        theirs,
        min(repeat, 3),
        "CPU",
        20,
        note,
        warm=False,
    )


def all_moments(panel, order):
    return [fv.lagged_moments(y, order) for y in panel.values()]


def fit_over_moments_row(repeat):
    panel = problems.panel()

    def ours():
        return fv.FedVAR(2, 3, **OPTIONS).fit(panel)

    def paper():
        return fv.FedVAR(2, 3, n_rounds=OPTIONS["n_rounds"], l1_penalty=OPTIONS["l1_penalty"]).fit(panel)

    task, peer, alone = "whole fit, d=200, p=2, K=5, T_k=2,000", "its moments alone", partial(all_moments, panel, 2)
    return [
        costs(task, peer, ours, alone, max(repeat, 9), at_most=3, note="50 rounds, r=3, deltas to a 1e-6 gap"),
        costs(task, peer, paper, alone, max(repeat, 9), note="50 rounds, r=3, 20 FISTA steps"),
    ]


def least_squares_row(repeat):
    y = problems.series(20_000, 50)
    task, peer = "least-squares VAR, d=50, p=4, T=20,000", "statsmodels VAR"
    if missing("statsmodels"):
        return skipped(task, peer, missing("statsmodels"))
    model = fv.LeastSquaresVAR(4, center=False, scale=False)

    def ours():
        return next(iter(model.fit({"all": y}).coef_.values()))

    theirs = partial(statsmodels.least_squares, y, 4)
    return faster(
        task, peer, ours, theirs, repeat, note=lambda: f"largest difference {np.max(np.abs(ours() - theirs())):.0e}"
    )


def tuning_row(repeat):
    """On a client of the real panel where it is here, else on simulated rows of the same size."""
    path = SHARED / "data" / "great_lakes" / "Indiana.csv"
    y = fv.read_panel(path)["Indiana"].values if path.exists() else problems.series(414, 12)
    z = (y - y.mean(axis=0)) / y.std(axis=0)
    moments = fv.lagged_moments(z[:-20], 4)
    origins = RollingOrigins(moments, z[len(z) - 24 :])
    nuclear = penalty_grid(2.0 * np.linalg.norm(moments.yx, 2) / moments.n_rows)
    l1 = penalty_grid(largest_penalty(moments))

    def ours():
        return tune_low_rank_sparse(origins, nuclear, l1, tol=1e-4).errors

    mine = ours()
    cost = float(np.median([timed(ours, "CPU")[0] for _ in range(repeat)]))
    # The plain way takes a minute or more: once.
    theirs, others = timed(lambda: plain.tune_low_rank_plus_sparse(z, 4, 20, nuclear, l1, 1e-4), "CPU")
    return Row(
        "8 x 8 grid, 20 origins, d=12, p=4, T=414", "64 cold fits an origin, NumPy", "CPU", cost, theirs,
        theirs / cost, at_least=20, note=f"errors differ by {np.max(np.abs(mine - others) / others):.0e} relative",
    )  # fmt: skip


# -- the large fit, from memory-mapped files -----------------------------------------------------------------


def write_clients(folder, n_clients, n_rows, dim, rank, order=2, seed=0):
    """Float64 files ``client_K.npy``: AR(1) factors in every variable, plus noise, written a chunk at a time."""
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((rank, dim)) / np.sqrt(rank)
    for client in range(n_clients):
        out = np.lib.format.open_memmap(folder / f"client_{client}.npy", "w+", np.float64, (n_rows, dim))
        factors = np.zeros((n_rows, rank))
        shocks = rng.standard_normal((n_rows, rank))
        for t in range(1, n_rows):
            factors[t] = 0.7 * factors[t - 1] + shocks[t]
        for start in range(0, n_rows, 5000):
            chunk = factors[start : start + 5000] @ loadings
            out[start : start + 5000] = chunk + rng.standard_normal(chunk.shape)
        out.flush()


def fit_from_files(folder, order, rank):
    """Seconds of a fit from the mapped files and of its moments alone, and the fit's peak extra MiB."""
    panel = {path.stem: np.load(path, mmap_mode="r") for path in sorted(Path(folder).glob("*.npy"))}
    model = fv.FedVAR(order, rank, l1_penalty="rate")
    all_moments({name: y[:500] for name, y in panel.items()}, order)
    first, _ = timed(partial(all_moments, panel, order))  # reads the files into the page cache, too
    with PeakMemory(0.005) as memory:
        whole, _ = timed(partial(model.fit, panel))
    second, _ = timed(partial(all_moments, panel, order))
    return whole, min(first, second), memory.extra_mib, model.n_rounds_


def large_rows(n_clients=8, n_rows=50_000, dim=1000, rank=10):
    with tempfile.TemporaryDirectory() as folder:
        write_clients(Path(folder), n_clients, n_rows, dim, rank)
        whole, alone, extra, n_rounds = in_new_process(fit_from_files, folder, 2, rank)
    task = f"whole fit, d={dim:,}, p=2, K={n_clients}, T_k={n_rows:,}, rank {rank}, mapped"
    note = f"{n_rounds} rounds, 20 FISTA steps; once"
    return [
        Row(task, "its moments alone", "wall", whole, alone, whole / alone, "{:.2f}x its time", at_most=2, note=note),
        Row(task, "the mapped data", "", np.nan, np.nan, extra, "{:.0f} MiB beyond", at_most=2048),
    ]


def golden_line():
    """Parity with the golden arrays, where they are; no time."""
    if not (SHARED / "golden").is_dir():
        return "golden parity: not measured, the golden arrays are not here"
    setting = json.loads((SHARED / "golden" / "great_lakes_fed.json").read_text())
    golden = np.load(SHARED / "golden" / "great_lakes_fed.npz")
    panel = fv.read_panel(SHARED / "data" / "great_lakes").reorder(clients=setting["clients"])
    model = fv.FedVAR(
        setting["order"], setting["rank"], scale=False, n_rounds=setting["rounds"], step=setting["step"],
        l1_penalty=setting["varpi"], local_iter=setting["local_iter"],
    ).fit(panel)  # fmt: skip
    shared = np.max(np.abs(model.A0_ - golden["A0"]))
    deltas = max(np.max(np.abs(model.deltas_[name] - golden[f"delta_{name}"])) for name in setting["clients"])
    return f"golden parity: A_0 within {shared:.0e}, the five deviations within {deltas:.0e} (target 1e-8)"


BUILDERS = {
    "whole fit, d=200, p=2, K=5, T_k=2,000, its moments alone": fit_over_moments_row,
    "whole fit, d=200, p=2, K=5, T_k=2,000, plain NumPy": lambda repeat: [plain_row(repeat)],
    "least-squares VAR, d=50, p=4, T=20,000": lambda repeat: [least_squares_row(repeat)],
    "8 x 8 grid, 20 origins, d=12, p=4, T=414": lambda repeat: [tuning_row(repeat)],
}
