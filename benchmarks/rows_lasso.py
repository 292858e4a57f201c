"""Rows of the table about Stage II: d lassos on one Gram matrix, to a gap and for a number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

import fedvar_fast as fv
from benchmarks import plain, problems
from benchmarks.measure import faster, skipped
from benchmarks.peers import celer, loosest, missing, scikit_learn, skglm
from fedvar_fast.solvers.fista import largest_penalty, lasso_on_moments

TOLERANCE = 1e-6


@dataclass
class Lassos:
    """d lassos of a sparse VAR with about six nonzeros a row, in the data and in the answer."""

    dim: int = 200
    order: int = 4
    n_rows: int = 4000

    @cached_property
    def y(self):
        return problems.sparse_var(self.n_rows, self.dim, self.order)

    @cached_property
    def moments(self):
        return fv.lagged_moments(self.y, self.order)

    @cached_property
    def penalty(self):
        return 0.1 * largest_penalty(self.moments)

    @cached_property
    def design(self):
        """Design matrix in the order that every peer works in, and the responses."""
        x, response = plain.design(self.y, self.order)
        return np.asfortranarray(x), np.asfortranarray(response)

    @cached_property
    def gram(self):
        return self.design[0].T @ self.design[0]

    def gap(self, coef):
        """Relative duality gap of the first rows of the answer, as many as there are."""
        n, moments = len(coef), self.moments
        energy = np.diag(moments.yy)[:n]
        return plain.relative_gap(coef, moments.xx, moments.yx[:n], energy, moments.n_rows, self.penalty)

    def ours(self, solver="auto", tol=TOLERANCE):
        return lasso_on_moments(self.moments, self.penalty, tol=tol, solver=solver).coef

    def peer(self, name, tol, n=None):
        """A peer's answer for the first n responses."""
        x, response = self.design
        response = response[:, :n]
        if name == "scikit-learn, Gram":
            return scikit_learn.lasso_gram(x, response, self.gram, self.penalty, tol)
        solve = {"scikit-learn, design": scikit_learn.lasso, "celer, design": celer.lasso, "skglm, design": skglm.lasso}
        return solve[name](x, response, self.penalty, tol)


#: Peers, the library each needs, and how many times faster we should be.
PEERS = {
    "scikit-learn, Gram": ("sklearn", 25),
    "scikit-learn, design": ("sklearn", None),
    "celer, design": ("celer", 1000),
    "skglm, design": ("skglm", 1000),
}


def peer_row(problem, name, repeat):
    library, at_least = PEERS[name]
    task = f"{problem.dim} lassos to a 1e-6 gap, d={problem.dim}, p={problem.order}, T={problem.n_rows:,}"
    if missing(library):
        return skipped(task, name, missing(library))
    tol = loosest(partial(problem.peer, name), problem.gap, TOLERANCE)
    theirs = partial(problem.peer, name, tol)
    seconds_each = 3 if "design" in name else 5

    def note():
        gaps = f"gaps {problem.gap(problem.ours()):.0e}, {problem.gap(theirs()):.0e}"
        nonzeros = np.count_nonzero(problem.ours()) / problem.dim
        return f"{gaps}; their tol {tol:.0e}; {nonzeros:.1f} nonzeros a row"

    return faster(task, name, problem.ours, theirs, min(repeat, seconds_each), at_least=at_least, note=note)


def lasso_rows(repeat):
    problem = Lassos()
    return [peer_row(problem, name, repeat) for name in PEERS]


def coordinate_row(repeat):
    problem = Lassos()
    return faster(
        "200 lassos to a 1e-6 gap, d=200, p=4, T=4,000", "our own FISTA", problem.ours,
        partial(problem.ours, "fista"), repeat,
        note=lambda: f"gaps {problem.gap(problem.ours()):.0e}, {problem.gap(problem.ours('fista')):.0e}",
    )  # fmt: skip


def fista_row(repeat):
    """Both are given the step: what is compared is the loop."""
    problem = Lassos()
    moments, energy = problem.moments, np.diag(problem.moments.yy)
    step = moments.n_rows / (2.0 * moments.operator_norm())

    def ours():
        return lasso_on_moments(moments, problem.penalty, tol=None, max_iter=20, step=step).coef

    def theirs():
        return plain.fista(moments.xx, moments.yx, energy, moments.n_rows, problem.penalty, 20, step=step)

    return faster(
        "20 FISTA steps, d=200, p=4", "NumPy loop over GEMM", ours, theirs, repeat, at_least=2,
        note=lambda: f"largest difference {np.max(np.abs(ours() - theirs())):.0e}",
    )  # fmt: skip


BUILDERS = {
    "200 lassos to a 1e-6 gap, d=200, p=4, T=4,000, peers": lasso_rows,
    "200 lassos to a 1e-6 gap, d=200, p=4, T=4,000, our own FISTA": lambda repeat: [coordinate_row(repeat)],
    "20 FISTA steps, d=200, p=4": lambda repeat: [fista_row(repeat)],
}
