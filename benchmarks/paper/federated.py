"""Figures 2 to 5: the federated estimator under the paper's noise, beside the single-client one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper.design import DESIGN_WORDS, Cell, moments_of, panel_of, seed_of, standardize
from benchmarks.paper.figures import Axis, Chart, draw_heatmaps, draw_lines
from benchmarks.paper.pilots import (
    WORDS,
    Budget,
    local_constants,
    local_fit,
    personal_fit,
    privacy_of,
    shared_constants,
    shared_fit,
)
from benchmarks.paper.report import Output, Report, band_text, spread
from benchmarks.paper.runner import Run, replicate
from benchmarks.paper.single import PARTS, SYMBOLS, UNITS, band_line, errors_of
from fedvar_fast._typing import FloatArray
from fedvar_fast.federation import client as client_side
from fedvar_fast.federation import server
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.privacy.mechanism import noise_generator
from fedvar_fast.simulate import SimulatedTruth
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState

DEFAULT: Budget = (2.0, 0.1)
TRACED: tuple[Budget, ...] = ((1.0, 0.01), (1.0, 0.1), (2.0, 0.1), (4.0, 0.1), (8.0, 0.1), None)
EPSILONS, DELTAS = (0.5, 1.0, 2.0, 4.0, 8.0), (0.01, 0.05, 0.1, 0.2)
CLIENTS = (2, 5, 10, 15, 20)
LENGTHS = (200, 400, 600, 800, 1200, 1600)
_NOISE = "sigma = sqrt(2 ln(1.25/delta)) / epsilon in every round, N_g = ceil(10 log T) rounds, true rank"


def budget_words(budget: Sequence[float] | None) -> str:
    return "no noise" if budget is None else f"({budget[0]:g}, {budget[1]:g})"


def panel_moments(cell: Cell, number: int) -> tuple[dict[str, LaggedMoments], SimulatedTruth]:
    arrays, truth = panel_of(cell, seed_of("evaluated", cell, number))
    return {client: moments_of(standardize(series, scale=False)) for client, series in arrays.items()}, truth


# -- Figure 2 ------------------------------------------------------------------------------------------------


def trace(
    moments: Mapping[str, LaggedMoments], start: FloatArray, rank: int, factor: float,
    budget: Sequence[float] | None, seed: int, target: FloatArray,
) -> list[float]:  # fmt: skip
    """``||A_0^(n) - A_0||_F`` of every round, from the pure steps of clients and server; the start is round 0."""
    names = sorted(moments)
    ordered = [moments[name] for name in names]
    summaries = [client_side.summarize(one) for one in ordered]
    weights = server.client_weights(summaries)
    component = LowRankComponent(factor * server.safe_step(summaries, weights))
    privacy = privacy_of(budget)
    generators = [None if privacy is None else noise_generator(privacy, seed, name) for name in names]
    sigma = 0.0 if privacy is None else privacy.round_sigma(1.0)
    state = LowRankState(FixedRank.from_dense(start, rank))
    errors = [float(np.linalg.norm(state.point.dense() - target))]
    for _ in range(server.default_rounds(sum(summary.n_rows for summary in summaries))):
        messages = [
            client_side.pair_message(component, one, state, sigma, generator)
            for one, generator in zip(ordered, generators, strict=True)
        ]
        state, _ = server.aggregate_round(component, state, messages, weights)
        errors.append(float(np.linalg.norm(state.point.dense() - target)))
    return errors


def trace_replication(settings: dict[str, Any], number: int) -> list[list[float]]:
    """Errors by budget and round; the noise of all budgets is the same but for its size."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    moments, truth = panel_moments(cell, number)
    start = local_fit(next(iter(moments.values())), settings["local"]).low_rank
    seed = seed_of("noise", cell, number)
    return [
        trace(moments, start, cell.rank, settings["factor"], budget, seed, truth.A0) for budget in settings["budgets"]
    ]


def fig2(run: Run, output: Output, replications: int) -> None:
    cell = Cell()
    local = local_constants(run, [cell.n_rows])
    [[(factor, _)]] = shared_constants(run, [cell], local, [DEFAULT])
    settings = cell.words() | {"local": local[cell.n_rows], "factor": factor, "budgets": list(TRACED)}
    (found,) = replicate(run, "fig2", trace_replication, [settings], replications)
    errors = np.asarray(found)
    rows = [
        {"budget": budget_words(budget), "round": n, **spread(errors[:, i, n])}
        for i, budget in enumerate(TRACED)
        for n in range(errors.shape[2])
    ]
    shown = [0, 5, 10, 20, 40, errors.shape[2] - 1]
    by_budget = {budget_words(one): [row for row in rows if row["budget"] == budget_words(one)] for one in TRACED}
    report = Report(
        name="fig2",
        title="Figure 2: error of A_0 against the rounds of Stage I",
        settings={
            "replications": f"{replications:,}",
            "design": f"{DESIGN_WORDS}; K = 5, T_k = 400, r = 2",
            "errors": UNITS,
            "noise": _NOISE,
            "start": "local low-rank part of the first client, cut to rank 2",
            "tuning": f"{WORDS}; step = {factor:g}/H for all curves, the choice at {budget_words(DEFAULT)}",
        },
        rows=rows,
        tables={
            "Mean error (5 % – 95 %) at round": (
                ["(epsilon, delta)", *map(str, shown)],
                [[name, *(band_text(one[n]) for n in shown)] for name, one in by_budget.items()],
            )
        },
    )
    report.write(output)
    lines = [band_line(name, range(errors.shape[2]), one) for name, one in by_budget.items()]
    chart = Chart(r"Stage I, by $(\varepsilon, \delta)$", lines, r"$\|A_0^{(n)} - A_0\|_F$")
    draw_lines(output.path("fig2.png"), "round $n$", [chart], marks=False)


# -- one replication of Figures 3 to 5 -----------------------------------------------------------------------


def federated_replication(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """Errors of ``A_0``, ``Delta_k``, ``A_k``, means over clients: of the local estimator and under every budget."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    moments, truth = panel_moments(cell, number)
    alone = {client: local_fit(one, settings["local"]) for client, one in moments.items()}
    start = next(iter(alone.values())).low_rank
    seed = seed_of("noise", cell, number)
    together = []
    for budget, (factor, constant) in zip(settings["budgets"], settings["constants"], strict=True):
        shared = shared_fit(moments, start, cell.rank, factor, budget, seed)
        base = shared.point.dense()
        own = {client: personal_fit(one, shared, client, constant) for client, one in moments.items()}
        together.append(np.mean([errors_of(base, own[client], truth, client) for client in own], axis=0).tolist())
    local = [errors_of(one.low_rank, one.sparse, truth, client) for client, one in alone.items()]
    return {"local": np.mean(local, axis=0).tolist(), "federated": together}


def _compared(
    run: Run, name: str, cells: Sequence[Cell], budgets: Sequence[Budget], replications: int
) -> tuple[list[dict[str, Any]], FloatArray, FloatArray]:
    """Settings, local errors (cell, replication, part) and federated ones (cell, replication, budget, part)."""
    local = local_constants(run, sorted({cell.n_rows for cell in cells}))
    chosen = shared_constants(run, cells, local, budgets)
    settings = [
        cell.words() | {"local": local[cell.n_rows], "budgets": list(budgets), "constants": constants}
        for cell, constants in zip(cells, chosen, strict=True)
    ]
    found = replicate(run, name, federated_replication, settings, replications)
    alone = np.array([[one["local"] for one in results] for results in found])
    return settings, alone, np.array([[one["federated"] for one in results] for results in found])


# -- Figure 3 ------------------------------------------------------------------------------------------------


def fig3(run: Run, output: Output, replications: int) -> None:
    budgets = [(epsilon, delta) for delta in DELTAS for epsilon in EPSILONS]
    settings, alone, together = _compared(run, "fig3", [Cell()], budgets, replications)
    local, federated = alone[0].mean(axis=0), together[0].mean(axis=0)
    rows = []
    for i, (budget, (factor, constant)) in enumerate(zip(budgets, settings[0]["constants"], strict=True)):
        sigma = math.sqrt(2.0 * math.log(1.25 / budget[1])) / budget[0]
        how = {"epsilon": budget[0], "delta": budget[1], "sigma": sigma, "step_factor": factor, "varpi": constant}
        for j, part in enumerate(PARTS):
            gain = float(local[j] - federated[i, j])
            rows.append(how | {"part": part, **spread(together[0][:, i, j]), "local": float(local[j]), "benefit": gain})
    grids = {part: federated[:, j].reshape(len(DELTAS), len(EPSILONS)) for j, part in enumerate(PARTS)}
    errors = {f"error of {SYMBOLS[part]}": grid for part, grid in grids.items()}
    benefits = {f"benefit for {SYMBOLS[part]}": local[j] - grids[part] for j, part in enumerate(PARTS)}
    tables = {f"Error of {part} (benefit over the local estimator)": _grid_table(grids[part], local[j])
              for j, part in enumerate(PARTS)}  # fmt: skip
    local_words = ", ".join(f"{part} {value:.3f}" for part, value in zip(PARTS, local, strict=True))
    report = Report(
        name="fig3",
        title="Figure 3: errors and benefits over (epsilon, delta)",
        settings={
            "replications": f"{replications:,}",
            "design": f"{DESIGN_WORDS}; K = 5, T_k = 400, r = 2",
            "errors": f"{UNITS}; means over clients and replications; benefit as in (11)",
            "noise": _NOISE,
            "tuning": f"{WORDS}, at every (epsilon, delta)",
            "local errors": local_words,
        },
        rows=rows,
        tables=tables,
    )
    report.write(output)
    across, down = Axis(r"$\varepsilon$", EPSILONS), Axis(r"$\delta$", DELTAS)
    draw_heatmaps(output.path("fig3.png"), across, down, [errors, benefits], ["viridis_r", "RdBu"])


def _grid_table(grid: FloatArray, local: float) -> tuple[list[str], list[list[str]]]:
    body = [
        [f"delta = {delta:g}", *(f"{error:.3f} ({round(local - error, 3) + 0.0:+.3f})" for error in line)]
        for delta, line in zip(DELTAS, grid, strict=True)
    ]
    return ["", *(f"epsilon = {epsilon:g}" for epsilon in EPSILONS)], body


# -- Figures 4 and 5 -----------------------------------------------------------------------------------------


def fig4(run: Run, output: Output, replications: int) -> None:
    cells = [Cell(n_clients=count) for count in CLIENTS]
    rows = _sweep(run, "fig4", "n_clients", cells, replications)
    _write_sweep(output, "fig4", "Figure 4: errors against the number of clients", "K", "T_k = 400", rows, replications)
    lines = [
        band_line(SYMBOLS[part], CLIENTS, _some(rows, part, "federated"), colour=i) for i, part in enumerate(PARTS)
    ]
    lines += [band_line(f"{SYMBOLS['A0']}, no noise", CLIENTS, _some(rows, "A0", "no noise"), colour=4, dashed=True)]
    chart = Chart(r"Federated, $(\varepsilon, \delta) = (2, 0.1)$", lines, "Frobenius error")
    draw_lines(output.path("fig4.png"), "$K$", [chart])


def fig5(run: Run, output: Output, replications: int) -> None:
    cells = [Cell(n_rows=length) for length in LENGTHS]
    rows = _sweep(run, "fig5", "n_rows", cells, replications)
    title = "Figure 5: errors and benefit of federation against T_k"
    _write_sweep(output, "fig5", title, "T_k", "K = 5", rows, replications)
    charts = []
    for part in PARTS:
        lines = [
            band_line(label, LENGTHS, _some(rows, part, what), colour=i)
            for i, (label, what) in enumerate((("Federated", "federated"), ("Local", "local"), ("Benefit", "benefit")))
        ]
        charts.append(Chart(SYMBOLS[part], lines, "Frobenius error" if part == PARTS[0] else ""))
    draw_lines(output.path("fig5.png"), "$T_k$", charts)


def _sweep(run: Run, name: str, varied: str, cells: Sequence[Cell], replications: int) -> list[dict[str, Any]]:
    settings, alone, together = _compared(run, name, cells, [DEFAULT, None], replications)
    rows = []
    for i, one in enumerate(settings):
        values = {
            "federated": together[i][:, 0],
            "no noise": together[i][:, 1],
            "local": alone[i],
            "benefit": alone[i] - together[i][:, 0],
        }
        (factor, constant), _ = one["constants"]
        how = {"a": one["local"][0], "b": one["local"][1], "step_factor": factor, "varpi": constant}
        rows += [
            {varied: one[varied], "what": what, "part": part, **spread(found[:, j]), **how}
            for what, found in values.items()
            for j, part in enumerate(PARTS)
        ]
    return rows


def _some(rows: Sequence[Mapping[str, Any]], part: str, what: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["part"] == part and row["what"] == what]


def _write_sweep(
    output: Output, name: str, title: str, varied: str, fixed: str, rows: list[dict[str, Any]], replications: int
) -> None:
    points = [row[next(iter(row))] for row in _some(rows, "A0", "federated")]
    tables = {}
    for part in PARTS:
        columns = {what: _some(rows, part, what) for what in ("federated", "no noise", "local", "benefit")}
        body = [[str(point), *(band_text(one[i]) for one in columns.values())] for i, point in enumerate(points)]
        tables[f"{part}: mean (5 % – 95 %)"] = ([varied, *columns], body)
    report = Report(
        name=name,
        title=title,
        settings={
            "replications": f"{replications:,} a point",
            "design": f"{DESIGN_WORDS}; {fixed}, r = 2",
            "errors": f"{UNITS}; means over clients",
            "noise": f"(epsilon, delta) = {budget_words(DEFAULT)}: {_NOISE}",
            "tuning": f"{WORDS}, at every point",
        },
        rows=rows,
        tables=tables,
    )
    report.write(output)
