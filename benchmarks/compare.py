"""One table of ratios within one run: this package beside plain NumPy and scikit-learn, task by task.

    python benchmarks/compare.py [--repeat 5] [--markdown]

Ours and theirs run in turn, ours, theirs, ours, theirs; the ratio is taken pair by pair and its median is
printed, so that a machine whose speed drifts does not favour either.
"""

from __future__ import annotations

import argparse
import platform
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedvar_fast as fv
from benchmarks import plain, problems
from benchmarks.peers import scikit_learn
from fedvar_fast import kernels
from fedvar_fast.solvers.fista import largest_penalty, lasso_on_moments
from fedvar_fast.tuning import RollingOrigins, penalty_grid, tune_low_rank_sparse


@dataclass
class Row:
    task: str
    peer: str
    clock: str
    ours: float
    theirs: float
    ratio: float
    target: str
    note: str = ""


def measured(function, clock):
    timer = time.process_time if clock == "CPU" else time.perf_counter
    start = timer()
    result = function()
    return timer() - start, result


def paired(task, peer, ours, theirs, repeat, clock="wall", target="", note=""):
    """Medians of both, and the median of the ratios theirs / ours, of `repeat` pairs after a warm-up."""
    ours(), theirs()
    pairs = [(measured(ours, clock)[0], measured(theirs, clock)[0]) for _ in range(repeat)]
    mine, others = np.array(pairs).T
    return Row(
        task, peer, clock, float(np.median(mine)), float(np.median(others)), float(np.median(others / mine)),
        target, note() if callable(note) else note,
    )  # fmt: skip


class PeakMemory:
    """Peak resident memory of this process beyond what it had, watched every half millisecond."""

    def __enter__(self):
        self.page = 4096
        self.before = self.peak = self.resident()
        self.running = True
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def resident(self):
        return int(Path("/proc/self/statm").read_text().split()[1]) * self.page

    def watch(self):
        while self.running:
            self.peak = max(self.peak, self.resident())
            time.sleep(0.0005)

    def __exit__(self, *error):
        self.running = False
        self.thread.join()

    @property
    def extra_mib(self):
        return (self.peak - self.before) / 2**20


def moments_row(repeat):
    y = problems.series(200_000, 50)
    with PeakMemory() as memory:
        fv.lagged_moments(y, 4)
    return paired(
        "lagged moments, d=50, p=4, T=200,000", "design matrix, X'X, Y'X", lambda: fv.lagged_moments(y, 4),
        lambda: plain.moments(y, 4), repeat, target="at least 4x, under 64 MiB",
        note=f"peak extra memory {memory.extra_mib:.0f} MiB",
    )  # fmt: skip


def pair_row(repeat):
    moments = problems.moments(4000, 200, 2)
    factors = problems.factors(moments.yx, 3)
    arguments = (*factors, moments.xx, moments.yx, moments.n_rows)
    return paired(
        "gradient pair, d=200, p=2, r=3", "dense gradient and projection",
        lambda: [kernels.gradient_pair(*arguments) for _ in range(20)],
        lambda: [plain.gradient_pair(*arguments) for _ in range(20)], repeat,
    )  # fmt: skip


def fista_row(repeat):
    moments = fv.lagged_moments(problems.sparse_var(4000, 200, 2), 2)
    penalty = 0.1 * largest_penalty(moments)
    energy = np.diag(moments.yy)

    def ours():
        return lasso_on_moments(moments, penalty, tol=None, max_iter=20).coef

    def theirs():
        return plain.fista(moments.xx, moments.yx, energy, moments.n_rows, penalty, 20)

    return paired(
        "20 FISTA steps, d=200, p=2", "NumPy loop over GEMM", ours, theirs, repeat,
        note=lambda: f"largest difference {np.max(np.abs(ours() - theirs())):.0e}",
    )  # fmt: skip


def lasso_row(repeat):
    x, response = plain.design(problems.sparse_var(4000, 200, 2), 2)
    moments = fv.lagged_moments(problems.sparse_var(4000, 200, 2), 2)
    gram = x.T @ x
    penalty = 0.1 * largest_penalty(moments)
    energy = np.diag(moments.yy)

    def gap(coef):
        return plain.relative_gap(coef, moments.xx, moments.yx, energy, moments.n_rows, penalty)

    def ours():
        return lasso_on_moments(moments, penalty, tol=1e-6).coef

    def theirs():
        return scikit_learn.lasso_gram(x, response, gram, penalty, 1e-6)

    return paired(
        "200 lassos to a 1e-6 gap, d=200, p=2", "scikit-learn, Gram", ours, theirs, repeat,
        note=lambda: f"gaps {gap(ours()):.0e}, {gap(theirs()):.0e}",
    )  # fmt: skip


def svd_row(repeat):
    from sklearn.utils.extmath import randomized_svd

    matrix = problems.low_rank_plus_noise(500, 2000, 10)
    best = np.sqrt(np.sum(np.linalg.svd(matrix, compute_uv=False)[10:] ** 2))

    def excess(u, s, vt):
        return float(np.linalg.norm(matrix - (u * s) @ vt) / best - 1.0)

    def ours():
        return fv.randomized_svd(matrix, 10)

    def theirs():
        return randomized_svd(matrix, 10, random_state=0)

    return paired(
        "randomised SVD, 500 x 2,000, rank 10", "scikit-learn", ours, theirs, repeat,
        note=lambda: f"excess errors {excess(*ours()):.0e}, {excess(*theirs()):.0e}",
    )  # fmt: skip


def fit_row(repeat):
    panel = problems.panel()
    options = {"n_rounds": 50, "local_iter": 100, "l1_penalty": 0.1}

    def ours():
        return fv.FedVAR(2, 3, local_tol=1e-6, **options).fit(panel)

    def theirs():
        return plain.fit(panel, 2, 3, 50, 0.1, 100, None)

    def note():
        model, (shared, deltas) = ours(), theirs()
        apart = max(float(np.max(np.abs(model.deltas_[name] - delta))) for name, delta in deltas.items())
        return (
            f"A_0 differs by {np.max(np.abs(model.A0_ - shared)):.0e}, deltas by {apart:.0e}, "
            f"largest gap {max(model.gap_.values()):.0e}"
        )

    return paired(
        "whole fit, d=200, p=2, K=5, T_k=2,000", "plain NumPy", ours, theirs, min(repeat, 3), "CPU",
        "at least 20x less CPU", note,
    )  # fmt: skip


def tuning_row(repeat):
    """On a client of the real panel where it is here, else on simulated rows of the same size."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data" / "great_lakes" / "Indiana.csv"
    y = fv.read_panel(path)["Indiana"].values if path.exists() else problems.series(414, 12)
    z = (y - y.mean(axis=0)) / y.std(axis=0)
    moments = fv.lagged_moments(z[:-20], 4)
    origins = RollingOrigins(moments, z[len(z) - 24 :])
    nuclear = penalty_grid(2.0 * np.linalg.norm(moments.yx, 2) / moments.n_rows)
    l1 = penalty_grid(largest_penalty(moments))

    def ours():
        return tune_low_rank_sparse(origins, nuclear, l1, tol=1e-4).errors

    mine = ours()
    cost = float(np.median([measured(ours, "CPU")[0] for _ in range(repeat)]))
    # The plain way takes a minute or more: once.
    theirs, others = measured(lambda: plain.tune_low_rank_plus_sparse(z, 4, 20, nuclear, l1, 1e-4), "CPU")
    return Row(
        "8 x 8 grid, 20 origins, d=12, p=4, T=414", "64 cold fits an origin, NumPy", "CPU", cost, theirs,
        theirs / cost, "at least 20x less CPU",
        f"errors differ by {np.max(np.abs(mine - others) / others):.0e} relative",
    )  # fmt: skip


def golden_line():
    """Parity with the golden arrays, where they are; no time."""
    import json

    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "golden").is_dir():
        return "golden parity: not measured, the golden arrays are not here"
    setting = json.loads((folder / "golden" / "great_lakes_fed.json").read_text())
    golden = np.load(folder / "golden" / "great_lakes_fed.npz")
    panel = fv.read_panel(folder / "data" / "great_lakes").reorder(clients=setting["clients"])
    model = fv.FedVAR(
        setting["order"], setting["rank"], scale=False, n_rounds=setting["rounds"], step=setting["step"],
        l1_penalty=setting["varpi"], local_iter=setting["local_iter"],
    ).fit(panel)  # fmt: skip
    shared = np.max(np.abs(model.A0_ - golden["A0"]))
    deltas = max(np.max(np.abs(model.deltas_[name] - golden[f"delta_{name}"])) for name in setting["clients"])
    return f"golden parity: A_0 within {shared:.0e}, the five deviations within {deltas:.0e} (target 1e-8)"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    builders = (moments_row, pair_row, fista_row, lasso_row, svd_row, fit_row, tuning_row)
    rows = [build(arguments.repeat) for build in builders]
    print(
        f"{platform.processor() or platform.machine()}, {kernels.resolve_n_jobs(None)} threads, NumPy {np.__version__}"
    )
    print(golden_line())
    if arguments.markdown:
        print(
            "| task | beside | clock | ours (ms) | theirs (ms) | ratio | target | |\n|---|---|---|---|---|---|---|---|"
        )
        form = "| {} | {} | {} | {:.4g} | {:.4g} | {:.1f} | {} | {} |"
    else:
        form = "{:<40} {:<32} {:<5} {:>10.4g} {:>10.4g} {:>8.1f}x  {:<26} {}"
        print(f"{'task':<40} {'beside':<32} {'clock':<5} {'ours, ms':>10} {'theirs, ms':>10} {'ratio':>9}  target")
    for row in rows:
        print(form.format(
            row.task, row.peer, row.clock, 1e3 * row.ours, 1e3 * row.theirs, row.ratio, row.target, row.note
        ))  # fmt: skip


if __name__ == "__main__":
    main()
