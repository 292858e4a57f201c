"""Figure 1: errors of the single-client estimator against the length of its series."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.paper.design import DESIGN_WORDS, Cell, moments_of, panel_of, seed_of, standardize
from benchmarks.paper.figures import Chart, Line, draw_lines
from benchmarks.paper.pilots import LOCAL_PILOTS, ORIGINS, local_constants, local_fit
from benchmarks.paper.report import Output, Report, band_text, spread
from benchmarks.paper.runner import Run, replicate
from fedvar_fast._typing import FloatArray
from fedvar_fast.simulate import SimulatedTruth

LENGTHS = (200, 400, 600, 800, 1000, 1200, 1400, 1600)
PARTS = ("A0", "Delta_k", "A_k")
#: In a picture.
SYMBOLS = {"A0": "$A_0$", "Delta_k": r"$\Delta_k$", "A_k": "$A_k$"}
UNITS = "Frobenius norms in the data's own units (centred, not scaled; the innovations have unit variance)"


def errors_of(shared: FloatArray, own: FloatArray, truth: SimulatedTruth, client: str) -> list[float]:
    """Frobenius errors of ``A_0``, ``Delta_k`` and ``A_k``."""
    pairs = ((shared, truth.A0), (own, truth.deltas[client]), (shared + own, truth.coef[client]))
    return [float(np.linalg.norm(estimate - true)) for estimate, true in pairs]


def single_replication(settings: dict[str, Any], number: int) -> list[float]:
    """Errors of one client."""
    cell = Cell(settings["n_rows"], settings["rank"], settings["n_clients"])
    arrays, truth = panel_of(cell, seed_of("evaluated", cell, number))
    client, series = next(iter(arrays.items()))
    found = local_fit(moments_of(standardize(series, scale=False)), settings["constants"])
    return errors_of(found.low_rank, found.sparse, truth, client)


def fig1(run: Run, output: Output, replications: int) -> None:
    constants = local_constants(run, LENGTHS)
    cells = [Cell(n_rows).words() | {"constants": constants[n_rows]} for n_rows in LENGTHS]
    results = replicate(run, "fig1", single_replication, cells, replications)
    rows, body = [], []
    for n_rows, found in zip(LENGTHS, results, strict=True):
        bands = {part: spread(np.asarray(found)[:, i]) for i, part in enumerate(PARTS)}
        a, b = constants[n_rows]
        rows += [{"n_rows": n_rows, "error_of": part, **band, "a": a, "b": b} for part, band in bands.items()]
        body.append([str(n_rows), *map(band_text, bands.values()), f"{a:g}", f"{b:g}"])
    report = Report(
        name="fig1",
        title="Figure 1: errors of the single-client estimator against T_k",
        settings={
            "replications": f"{replications:,} a length",
            "design": f"{DESIGN_WORDS}; K = 5, of which the first client; r = 2",
            "errors": UNITS,
            "penalties": f"lambda = a 2 sqrt(pd/T), omega = b 2 sqrt(log(pd)/T), no box; a and b by rolling forecasts "
            f"of the last {ORIGINS} rows of {LOCAL_PILOTS} pilot panels with seeds of their own",
        },
        rows=rows,
        tables={"Mean error (5 % – 95 %)": (["T_k", *PARTS, "a", "b"], body)},
        notes=[_norms(Cell())],
    )
    report.write(output)
    lines = [band_line(SYMBOLS[part], LENGTHS, [row for row in rows if row["error_of"] == part]) for part in PARTS]
    draw_lines(output.path("fig1.png"), "$T_k$", [Chart("Single client", lines, "Frobenius error")])


def band_line(label: str, x: Any, bands: Any, **options: Any) -> Line:
    mean, low, high = ([band[key] for band in bands] for key in ("mean", "p05", "p95"))
    return Line(label, x, mean, low, high, **options)


def _norms(cell: Cell) -> str:
    """What an estimate of zero would cost."""
    _, truth = panel_of(cell, seed_of("evaluated", cell, 0))
    own = float(np.linalg.norm(next(iter(truth.deltas.values()))))
    shared = float(np.linalg.norm(truth.A0))
    return f"For comparison, the norms of one replication's truth: ||A_0||_F = {shared:.3f}, ||Delta_k||_F = {own:.3f}."
