"""Table 1: how often the clients' vote finds the rank, and the pilot study behind its penalties."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper.design import (
    DESIGN_WORDS,
    DIM,
    ORDER,
    Cell,
    l1_unit,
    moments_of,
    noise_level_penalties,
    nuclear_unit,
    panel_of,
    seed_of,
    standardize,
)
from benchmarks.paper.figures import Chart, Line, draw_lines
from benchmarks.paper.report import Output, Report
from benchmarks.paper.runner import Run, replicate
from fedvar_fast._typing import FloatArray
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.rank import select_rank, vote
from fedvar_fast.solvers.admm import AdmmState, FactoredMoments, low_rank_plus_sparse
from fedvar_fast.tuning import RollingOrigins, penalty_grid, tune_low_rank_sparse

RANKS, LENGTHS = (1, 2, 3), (400, 800, 1200, 1600)
#: The paper's Table 1, % of 1,000 replications.
PUBLISHED = {1: (68.2, 99.4, 100.0, 100.0), 2: (42.9, 86.3, 98.4, 100.0), 3: (41.8, 85.5, 99.0, 100.0)}
#: Relative duality gap; a test checks that the ranks are the same at 1e-4 and 1e-8.
TOLERANCE = 1e-5
#: Constants that the pilot study compares, of lambda and omega in units of the paper's rates.
PILOT_NUCLEAR = (1.25, 1.5, 1.75, 1.9, 2.0, 2.1, 2.25)
PILOT_L1 = (1.0, 1.5, 2.0)
_ORIGINS = 20


# -- one replication -----------------------------------------------------------------------------------------


def table_replication(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """Votes of the clients (None: a zero matrix) and the rank that they elect."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    arrays, _ = panel_of(cell, seed_of("evaluated", cell, number))
    tuned = settings["penalties"] == "cv"
    votes = {}
    for client, series in arrays.items():
        scaled = standardize(series, settings["scale"])
        moments = moments_of(scaled)
        penalties = _tuned(scaled) if tuned else noise_level_penalties(moments.n_rows)
        result = low_rank_plus_sparse(moments, *penalties, tol=settings["tol"], warn=False)
        votes[client] = client_rank(result.low_rank, moments)
    return {"votes": list(votes.values()), "rank": vote(votes)}


def client_rank(low_rank: FloatArray, moments: LaggedMoments) -> int | None:
    """The paper's equation (9)."""
    return select_rank(np.linalg.svd(low_rank, compute_uv=False), moments.n_rows, ORDER, DIM).rank


def _tuned(scaled: FloatArray) -> tuple[float, float]:
    """Penalties by rolling forecasts of the last rows, one fit for all of them."""
    moments = moments_of(scaled[:-_ORIGINS])
    origins = RollingOrigins(moments, scaled[-_ORIGINS - ORDER :], _ORIGINS)
    nuclear = 2.0 * float(np.linalg.norm(moments.yx, 2)) / moments.n_rows
    l1 = 2.0 * float(np.max(np.abs(moments.yx))) / moments.n_rows
    chosen = tune_low_rank_sparse(origins, penalty_grid(nuclear), penalty_grid(l1)).chosen
    return chosen["nuclear_penalty"], chosen["l1_penalty"]


def pilot_replication(settings: dict[str, Any], number: int) -> list[list[int]]:
    """The elected rank for every pair of constants (l1, nuclear)."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    arrays, _ = panel_of(cell, seed_of("pilot", cell, number))
    ballots: dict[tuple[int, int], dict[str, int | None]] = {}
    for client, series in arrays.items():
        moments = moments_of(standardize(series, settings["scale"]))
        factored = FactoredMoments(moments)
        n = moments.n_rows
        for i, b in enumerate(settings["l1"]):
            state: AdmmState | None = None
            for j, a in reversed(list(enumerate(settings["nuclear"]))):
                found = low_rank_plus_sparse(
                    factored, a * nuclear_unit(n), b * l1_unit(n), tol=TOLERANCE, start=state, warn=False
                )
                state = found.state
                ballots.setdefault((i, j), {})[client] = client_rank(found.low_rank, moments)
    return [[vote(ballots[i, j]) for j in range(len(settings["nuclear"]))] for i in range(len(settings["l1"]))]


# -- the table -----------------------------------------------------------------------------------------------


def table1(run: Run, output: Output, replications: int, penalties: str = "noise-level", scale: bool = True) -> None:
    """Correct rates of the twelve cells beside the paper's."""
    cells = [_settings(rank, n_rows, penalties, scale) for rank in RANKS for n_rows in LENGTHS]
    results = replicate(run, "table1", table_replication, cells, replications)
    rows = [_row(cell, found) for cell, found in zip(cells, results, strict=True)]
    name = "table1" if penalties == "noise-level" else "table1_tuned"
    report = Report(
        name=name,
        title="Table 1: correct selection of the rank by the clients' vote",
        settings={
            "replications": f"{replications:,} a cell",
            "design": f"{DESIGN_WORDS}; K = 5",
            "estimator": _ESTIMATOR.format("scaled" if scale else "centred, not scaled", TOLERANCE),
            "penalties": _PENALTY_WORDS[penalties],
        },
        rows=rows,
        tables={
            "Correct rate in % (standard error), the paper's rate behind it": _rate_table(rows),
            "Mean share of clients that find the rank by themselves, %": _share_table(rows),
        },
        notes=[_verdict(rows)],
    )
    report.write(output)
    draw_lines(output.path(f"{name}.png"), "$T_k$", [_chart(rows)])


_ESTIMATOR = (
    "equation (4) by ADMM for each client, data {}, no box; rank by (9) with c = 0.01 sqrt(pd/T), mode over clients "
    "(10); relative duality gap {:g}"
)
_PENALTY_WORDS = {
    "noise-level": "lambda = 2 (sqrt(d) + sqrt(pd)) / sqrt(T), omega = 2 sqrt(2 log(d pd) / T) in every cell: the "
    "size of the gradient's noise; the constants are those of theory, looked at on pilot seeds (table1_pilot)",
    "cv": f"rolling one-step forecasts of each client's last {_ORIGINS} rows, one fit, grid 8 x 8",
}


def _settings(rank: int, n_rows: int, penalties: str, scale: bool) -> dict[str, Any]:
    return Cell(n_rows, rank).words() | {"penalties": penalties, "scale": scale, "tol": TOLERANCE}


def _row(cell: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    right = np.array([one["rank"] == cell["rank"] for one in found])
    share = np.mean([np.mean([vote == cell["rank"] for vote in one["votes"]]) for one in found])
    counts = Counter(one["rank"] for one in found)
    return {
        "rank": cell["rank"],
        "n_rows": cell["n_rows"],
        "replications": len(found),
        "correct": int(right.sum()),
        "rate": 100.0 * float(right.mean()),
        "standard_error": 100.0 * math.sqrt(right.mean() * (1 - right.mean()) / len(found)),
        "paper": PUBLISHED[cell["rank"]][LENGTHS.index(cell["n_rows"])],
        "clients_rate": 100.0 * float(share),
        "elected": " ".join(f"{rank}:{count}" for rank, count in sorted(counts.items())),
    }


def _by_rank(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    return {rank: [row for row in rows if row["rank"] == rank] for rank in RANKS}


def _rate_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    def text(row: Mapping[str, Any]) -> str:
        flag = "" if row["rate"] >= row["paper"] else " **below**"
        return f"{row['rate']:.1f} ({row['standard_error']:.1f}) / {row['paper']:.1f}{flag}"

    body = [[f"r = {rank}", *map(text, one)] for rank, one in _by_rank(rows).items()]
    return ["ours / paper", *(f"T = {n}" for n in LENGTHS)], body


def _share_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    body = [[f"r = {rank}", *(f"{row['clients_rate']:.1f}" for row in one)] for rank, one in _by_rank(rows).items()]
    return ["single clients", *(f"T = {n}" for n in LENGTHS)], body


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    below = [f"r = {row['rank']}, T = {row['n_rows']}" for row in rows if row["rate"] < row["paper"]]
    if not below:
        return "At least the paper's rate in every cell."
    return f"Below the paper's rate in {len(below)} of {len(rows)} cells: {'; '.join(below)}."


def _chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    lines = []
    for number, (rank, one) in enumerate(_by_rank(rows).items()):
        lines.append(Line(f"r = {rank}", LENGTHS, [row["rate"] for row in one], colour=number))
        lines.append(Line(f"r = {rank}, paper", LENGTHS, PUBLISHED[rank], dashed=True, colour=number))
    return Chart("Correct selection of the rank", lines, "%")


# -- the pilot study -----------------------------------------------------------------------------------------


def table1_pilot(run: Run, output: Output, replications: int, scale: bool = True) -> None:
    """Correct rates over the constants of both penalties, on panels that Table 1 never sees."""
    grid = {"nuclear": list(PILOT_NUCLEAR), "l1": list(PILOT_L1), "scale": scale}
    cells = [Cell(n_rows, rank).words() | grid for n_rows in LENGTHS[:2] for rank in RANKS]
    results = replicate(run, "table1_pilot", pilot_replication, cells, replications)
    rows, tables = [], {}
    for cell, found in zip(cells, results, strict=True):
        rates = 100.0 * np.mean(np.asarray(found) == cell["rank"], axis=0)
        caption = f"r = {cell['rank']}, T = {cell['n_rows']} (paper {_published(cell):.1f})"
        body = [[f"b = {b:g}", *(f"{rate:.0f}" for rate in line)] for b, line in zip(PILOT_L1, rates, strict=True)]
        tables[caption] = (["% correct", *(f"a = {a:g}" for a in PILOT_NUCLEAR)], body)
        rows += [
            {"rank": cell["rank"], "n_rows": cell["n_rows"], "nuclear": a, "l1": b, "rate": float(rates[i, j])}
            for i, b in enumerate(PILOT_L1)
            for j, a in enumerate(PILOT_NUCLEAR)
        ]
    report = Report(
        name="table1_pilot",
        title="Pilot study for Table 1: how the penalties decide the rank",
        settings={
            "replications": f"{replications:,} a cell, on seeds of their own (purpose 'pilot' in design.seed_of)",
            "design": f"{DESIGN_WORDS}; K = 5",
            "penalties": "lambda = a 2 sqrt(pd/T), omega = b 2 sqrt(log(pd)/T); Table 1 has a = 2, b = 2",
            "data": "scaled" if scale else "centred, not scaled",
        },
        rows=rows,
        tables=tables,
    )
    report.write(output, picture=False)


def _published(cell: Mapping[str, Any]) -> float:
    return PUBLISHED[cell["rank"]][LENGTHS.index(cell["n_rows"])]
