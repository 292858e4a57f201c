"""Tables 2 and 3 and Figures 6 and 7: the two real panels, which lie outside the project."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedvar_fast as fv
from benchmarks.paper.report import Output, Report
from benchmarks.paper.runner import Run, replicate
from fedvar_fast import plot
from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.evaluation import rolling_evaluation
from fedvar_fast.metrics import diebold_mariano

ORDER, ORIGINS = 4, 20
BUDGETS = ((0.2, 0.05), (0.1, 0.01))
#: Standard deviations at which the second half of the tables winsorises: single months of 2020 stand 19 out.
CLIP = 4.0
_PROJECT = Path(__file__).resolve().parents[2]
#: Draws of the noise that the private columns are means of, unless --replications says otherwise.
DRAWS = 5

#: Least squares on the panel as it is, which was standardised over all rows, those to be forecast among them.
_AS_GIVEN = "LS as given"
_ALONE: dict[str, Callable[[], PanelVAR]] = {
    "LS": lambda: fv.LeastSquaresVAR(ORDER),
    _AS_GIVEN: lambda: fv.LeastSquaresVAR(ORDER, center=False, scale=False),
    "AR": lambda: fv.AutoregressionVAR(ORDER),
    "Nuc": lambda: fv.NuclearVAR(ORDER),
    "L1": lambda: fv.LassoVAR(ORDER),
    "Nuc+L1": lambda: fv.LocalVAR(ORDER),
}
NDP = "FedVAR NDP"
_BASELINE = "Nuc+L1"


@dataclass(frozen=True)
class Study:
    """One panel and what is known of it.

    ``known`` holds the figures of ../shared/golden/README.md (the authors' programs as they tune them): by method the
    RMSFE by client, or under "mean" that over clients.
    """

    panel: str
    rank: int
    known: Mapping[str, Mapping[str, float]]


_STATES = ("Indiana", "Ohio", "Wisconsin", "Michigan", "Illinois")
GREAT_LAKES = Study(
    "great_lakes",
    3,
    {
        "LS": dict(zip(_STATES, (1.0585, 0.9733, 0.8156, 0.5099, 0.7321), strict=True)),
        "Nuc": dict(zip(_STATES, (1.0742, 0.9122, 0.8008, 0.4588, 0.7010), strict=True)),
        "L1": dict(zip(_STATES, (1.0045, 0.8887, 0.7841, 0.4441, 0.6751), strict=True)),
        "Nuc+L1": dict(zip(_STATES, (0.9951, 0.8953, 0.7458, 0.4473, 0.6663), strict=True)),
        NDP: dict(zip(_STATES, (0.9752, 0.9208, 0.7416, 0.4610, 0.6960), strict=True)),
    },
)
MACRO = Study(
    "macro",
    4,
    {
        "LS": {"mean": 3.17},
        "Nuc": {"mean": 1.4554},
        "L1": {"mean": 1.4510},
        "Nuc+L1": {"mean": 1.4349},
        NDP: {"mean": 1.4453},
        "zero": {"mean": 1.4581},
    },
)


def panel_of(name: str) -> fv.Panel:
    folder = Path(os.environ.get("FEDVAR_DATA", _PROJECT.parent / "shared" / "data")) / name
    if not folder.is_dir():
        raise SystemExit(f"the real panels are not here: no folder {folder} (set FEDVAR_DATA)")
    return fv.read_panel(folder)


def private(budget: Sequence[float]) -> fv.Privacy:
    """The paper's noise here: ``sigma = sqrt(2 ln(1.25/delta)) / (10 epsilon)`` a round."""
    return fv.Privacy(budget[0], budget[1], calibration="paper", kappa=0.1, reproducible=True)


def federated(rank: int, budget: Sequence[float] | None, draw: int = 0) -> PanelVAR:
    if budget is None:
        return fv.FedVAR(ORDER, rank)
    return fv.FedVAR(ORDER, rank, privacy=private(budget), random_state=draw)


def private_name(budget: Sequence[float]) -> str:
    return f"FedVAR ({budget[0]:g}, {budget[1]:g})"


# -- the tables ----------------------------------------------------------------------------------------------


def evaluation(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """Losses by client and origin of one method, and of the two forecasts that need none."""
    panel = panel_of(settings["panel"])
    method, budget = settings["method"], settings["budget"]
    estimator = _ALONE[method]() if method in _ALONE else federated(settings["rank"], budget, number)
    estimator.set_params(n_jobs=1, clip=settings["clip"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = rolling_evaluation(panel, {method: estimator}, ORIGINS)
    losses = {
        one: {client: result.squared_errors(one, client).mean(axis=1).tolist() for client in panel.clients}
        for one in result.methods
    }
    return {"losses": losses, "warnings": sorted({f"{one.category.__name__}: {one.message}" for one in caught})}


def table2(run: Run, output: Output, draws: int = DRAWS) -> None:
    _table(run, output, GREAT_LAKES, "table2", "Table 2: RMSFE on the Great Lakes panel", draws)


def table3(run: Run, output: Output, draws: int = DRAWS) -> None:
    _table(run, output, MACRO, "table3", "Table 3: RMSFE on the macroeconomic panel", draws)


def _table(run: Run, output: Output, study: Study, name: str, title: str, draws: int) -> None:
    clients = list(panel_of(study.panel).clients)
    rows: list[dict[str, Any]] = []
    tables, notes = {}, []
    for clip, caption in ((None, ""), (CLIP, f", all methods with clip={CLIP:g}")):
        losses, words = _all_losses(run, study, draws, clip)
        figures = {method: _rmsfe(one, clients) for method, one in losses.items()}
        rows += [{"clip": "" if clip is None else clip} | row for row in _rows(study, figures, losses, clients)]
        tables[f"RMSFE{caption}"] = _figure_table(figures, losses, clients)
        tables[f"Ours / the authors' programs as they tune them (golden/README.md){caption}"] = _known_table(
            study, figures
        )
        notes += [f"{_worse(study, figures)[:-1]}{caption}.", *words]
    report = Report(
        name=name,
        title=title,
        settings={
            "forecasts": f"{ORIGINS} one-step forecasts of each client's last rows, expanding window, scaled by the "
            "training window, all variables pooled, original units of the panel",
            "methods": f"order {ORDER}, penalties by rolling forecasts at the first origin ({ORIGINS} rows), FedVAR "
            f"with rank {study.rank}, spectral start and safe step; '{_AS_GIVEN}' neither centres nor scales",
            "noise": "sigma = sqrt(2 ln(1.25/delta)) / (10 epsilon) a round (kappa = 0.1); private columns are means "
            f"over {draws} draws of the noise",
            "clip": f"none; or {CLIP:g}: rows winsorised at {CLIP:g} standard deviations of the training window",
            "comparison": "Diebold-Mariano on the loss pooled over clients and variables, against " + _BASELINE,
        },
        rows=rows,
        tables=tables,
        notes=notes,
    )
    report.write(output, picture=False)


def _all_losses(run: Run, study: Study, draws: int, clip: float | None) -> tuple[dict[str, np.ndarray], list[str]]:
    """(draws, clients, origins) by method, and what the estimators warned of."""
    base = {"panel": study.panel, "rank": study.rank, "clip": clip}
    once = [base | {"method": method, "budget": None} for method in (*_ALONE, NDP)]
    noisy = [base | {"method": private_name(budget), "budget": list(budget)} for budget in BUDGETS]
    found = replicate(run, "evaluation", evaluation, once, 1)
    found += replicate(run, "evaluation", evaluation, noisy, draws)
    losses, words = {}, []
    for settings, results in zip([*once, *noisy], found, strict=True):
        method = settings["method"]
        losses[method] = np.array([list(one["losses"][method].values()) for one in results])
        kinds = Counter(kind for one in results for kind in {text.split(":")[0] for text in one["warnings"]})
        words += [f"{method}: {kind} in {count} of {len(results)} draw(s)." for kind, count in sorted(kinds.items())]
    first = found[0][0]["losses"]
    return losses | {one: np.array([list(first[one].values())]) for one in ("mean", "zero")}, words


def _rmsfe(losses: np.ndarray, clients: Sequence[str]) -> dict[str, float]:
    """By client, and under "mean" their mean; of several draws the mean."""
    roots = np.sqrt(losses.mean(axis=2)).mean(axis=0)
    return dict(zip(clients, roots.tolist(), strict=True)) | {"mean": float(roots.mean())}


def _rows(
    study: Study, figures: Mapping[str, Mapping[str, float]], losses: Mapping[str, np.ndarray], clients: Sequence[str]
) -> list[dict[str, Any]]:
    rows = []
    for method, one in figures.items():
        roots = np.sqrt(losses[method].mean(axis=2))
        ends = dict(zip(clients, zip(roots.min(axis=0), roots.max(axis=0), strict=True), strict=True))
        ends["mean"] = roots.mean(axis=1).min(), roots.mean(axis=1).max()
        rows += [
            {
                "client": client,
                "method": method,
                "rmsfe": value,
                "least_of_draws": float(ends[client][0]),
                "most_of_draws": float(ends[client][1]),
                "authors": _known(study, method).get(client, ""),
            }
            for client, value in one.items()
        ]
    return rows


def _figure_table(
    figures: Mapping[str, Mapping[str, float]], losses: Mapping[str, np.ndarray], clients: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """The best figure of a row is bold."""
    body = []
    for client in (*clients, "mean"):
        values = [one[client] for one in figures.values()]
        body.append([client, *(f"**{v:.4f}**" if v == min(values) else f"{v:.4f}" for v in values)])
    means = {method: one["mean"] for method, one in figures.items()}
    body.append([f"vs {_BASELINE}, %", *(f"{100 * (v / means[_BASELINE] - 1):+.2f}" for v in means.values())])
    pooled = {method: one.mean(axis=(0, 1)) for method, one in losses.items()}
    tests = {m: diebold_mariano(one, pooled[_BASELINE]) for m, one in pooled.items() if m != _BASELINE}
    body.append([f"p, vs {_BASELINE}", *(f"{tests[m].p_value:.3f}" if m in tests else "" for m in figures)])
    return ["client", *figures], body


def _known(study: Study, method: str) -> dict[str, float]:
    """The authors' figures, with the mean over clients where it is not given."""
    known = dict(study.known.get(method, {}))
    return known if not known or "mean" in known else known | {"mean": float(np.mean(list(known.values())))}


def _known_table(study: Study, figures: Mapping[str, Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    methods = [method for method in figures if _known(study, method)]
    places = list(_known(study, methods[0]))

    def text(method: str, place: str) -> str:
        ours, theirs = figures[method][place], _known(study, method)[place]
        return f"{ours:.4f} / {theirs:.4f}{' **worse**' if _is_worse(ours, theirs) else ''}"

    return ["client", *methods], [[place, *(text(method, place) for method in methods)] for place in places]


def _is_worse(ours: float, theirs: float) -> bool:
    """Beyond the digits that were printed."""
    return ours > theirs + 5e-5


def _worse(study: Study, figures: Mapping[str, Mapping[str, float]]) -> str:
    pairs = [(m, place, figures[m][place], value) for m in figures for place, value in _known(study, m).items()]
    found = [
        f"{m}, {place}: {ours:.4f} against {theirs:.4f} ({100 * (ours / theirs - 1):+.1f} %)"
        for m, place, ours, theirs in pairs
        if _is_worse(ours, theirs)
    ]
    if not found:
        return "Nowhere worse than the authors' programs."
    return f"Worse than the authors' programs in {len(found)} of {len(pairs)} figures: {'; '.join(found)}."


# -- the heatmaps --------------------------------------------------------------------------------------------


def fig6(run: Run, output: Output) -> None:
    title = "Figure 6: shared part and two states' own parts, (epsilon, delta) = (0.2, 0.05)"
    _heatmaps(output, GREAT_LAKES, "fig6", title, BUDGETS[0], ["Wisconsin", "Illinois"])


def fig7(run: Run, output: Output) -> None:
    title = "Figure 7: shared part and two countries' own parts, no noise"
    _heatmaps(output, MACRO, "fig7", title, None, ["AUS", "USA"])


def _heatmaps(
    output: Output, study: Study, name: str, title: str, budget: Sequence[float] | None, shown: Sequence[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = federated(study.rank, budget).set_params(n_jobs=1).fit(panel_of(study.panel))
    rows = [_part_row("A_0", model.A0_)]
    rows += [_part_row(f"Delta, {client}", model.deltas_[client]) for client in model.clients_]
    body = [
        [str(one["part"]), *(f"{one[key]:.3g}" for key in ("norm", "largest")), str(one["nonzero"])] for one in rows
    ]
    report = Report(
        name=name,
        title=title,
        settings={
            "model": f"FedVAR, order {ORDER}, rank {study.rank}, fitted to all rows; penalties by rolling forecasts",
            "noise": "none" if budget is None else f"{tuple(budget)}, kappa = 0.1, one draw (seed 0)",
            "coefficients": "of the scaled data",
        },
        rows=rows,
        tables={"Size of the parts": (["part", "Frobenius norm", "largest entry", "nonzero"], body)},
    )
    report.write(output)
    plot.coefficients(model, shown).savefig(output.path(f"{name}.png"), dpi=130)


def _part_row(part: str, matrix: np.ndarray) -> dict[str, Any]:
    return {
        "part": part,
        "norm": float(np.linalg.norm(matrix)),
        "largest": float(np.abs(matrix).max()),
        "nonzero": int(np.count_nonzero(matrix)),
        "of": matrix.size,
    }
