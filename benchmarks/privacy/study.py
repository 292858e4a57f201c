"""Where does federating under a total privacy budget beat staying alone? Units, budgets and lengths of series.

    python -m benchmarks.privacy.study [--replications 3] [--jobs 1] [--out docs/results] [--longest 400000]

Every replication simulates a panel, fits it without privacy, alone, and under every budget and unit. What is compared
is the mean over clients of ``||L_k - A_0||_F``, every variable in its own standard deviation, ``L_k`` the low-rank part
that client k goes on from; the CSV file has the same in the units of the data.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedvar_fast as fv
from benchmarks.paper.figures import Chart, Line, draw_lines
from benchmarks.paper.report import Output, Report
from benchmarks.paper.runner import Run, replicate
from fedvar_fast.exceptions import PrivacyNoiseWarning
from fedvar_fast.privacy import Privacy
from fedvar_fast.solvers.riemannian import exact_reduced_rank

LENGTHS = (400, 4000, 40_000, 400_000)
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
UNITS = ("observation", "innovation", "client")
DELTA, CLIENTS, DIM, RANK = 1e-5, 5, 50, 2
DESIGNS = {
    "paper": {"stability": 0.7, "stability_measure": "operator_norm"},
    "ill-conditioned": {"stability": 0.8, "stability_measure": "spectral_radius"},
}
#: Declared bounds of every column, in the largest standard deviation of one (a public number in practice).
BOUND = 6.0
#: Decay that is declared for the innovation unit.
DECAY = {"paper": 0.7, "ill-conditioned": 0.9}


class StudyOutput(Output):
    """Results with this command in their heading."""

    def heading(self) -> dict[str, str]:
        return super().heading() | {"command": f"python -m benchmarks.privacy.study {shlex.join(self.command)}"}


def replication(settings: dict[str, Any], number: int) -> dict[str, Any]:
    """Errors without privacy, alone, and by unit and budget; and the share of clients that use the shared part."""
    design, length = settings["design"], settings["length"]
    panel, truth = fv.simulate_panel(
        CLIENTS, DIM, 1, length, RANK, random_state=number, **DESIGNS[design]
    )  # fmt: skip
    series = {name: one.values for name, one in panel.items()}
    options = {"l1_penalty": 10.0, "local_iter": 1, "shared_solver": "exact"}
    clean = fv.FedVAR(1, RANK, **options).fit(series)
    alone = {}
    for name, state in clean._states.items():
        one = state.standardized()
        alone[name] = exact_reduced_rank(one.xx / one.n_rows, one.yx / one.n_rows, RANK).dense()
    found: dict[str, Any] = {
        "clean": _errors(truth.A0, {name: clean.A0_ for name in series}, clean.scale_, clean.scale_),
        "alone": _errors(truth.A0, alone, clean.scale_, clean.scale_),
    }
    for unit in UNITS:
        for epsilon in BUDGETS:
            found[f"{unit} {epsilon:g}"] = _private(series, truth, design, unit, epsilon, number, clean.scale_)
    return found


def _private(
    series: Mapping[str, np.ndarray],
    truth: Any,
    design: str,
    unit: str,
    epsilon: float,
    number: int,
    own: Mapping[str, np.ndarray],
) -> dict[str, float]:
    bound = BOUND * max(float(values.std(axis=0).max()) for values in series.values())
    extra = {} if unit != "innovation" else _declared(truth, DECAY[design])
    privacy = Privacy(epsilon, DELTA, unit=unit, bounds=(-bound, bound), reproducible=True, **extra)
    model = fv.FedVAR(1, RANK, l1_penalty=10.0, local_iter=1, privacy=privacy, random_state=1000 + number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyNoiseWarning)
        model.fit(series)
    used = {name: model.own_low_rank_.get(name, model.A0_) for name in series}
    return _errors(truth.A0, used, model.scale_, own) | {
        "shared": float(np.mean(list(model.shared_used_.values()))),
        "noise": float(model.signal_to_noise_),
    }


def _declared(truth: Any, decay: float) -> dict[str, Any]:
    """Twice a norm that 50 standard normal numbers hardly pass, and the smallest M that goes with the decay."""
    largest = 1.0
    for delta in truth.deltas.values():
        power = np.eye(DIM)
        for h in range(1, 60):
            power = power @ (truth.A0 + delta)
            largest = max(largest, float(np.linalg.norm(power, 2)) / decay**h)
    return {"innovation_bound": 2.0 * (np.sqrt(DIM) + 4.0), "stability": (largest, decay)}


def _errors(
    true: np.ndarray, parts: Mapping[str, np.ndarray], scales: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Mean over clients of the Frobenius error, every variable in its own standard deviation, and as the data are."""
    apart = {k: part * np.outer(scales[k], 1.0 / scales[k]) - true for k, part in parts.items()}
    return {
        "error": float(np.mean([np.linalg.norm(one * np.outer(1.0 / own[k], own[k])) for k, one in apart.items()])),
        "raw": float(np.mean([np.linalg.norm(one) for one in apart.values()])),
    }


def study(run: Run, output: Output, replications: int, longest: int) -> None:
    lengths = [length for length in LENGTHS if length <= longest]
    cells = [{"design": design, "length": length} for design in DESIGNS for length in lengths]
    short = [cell for cell in cells if cell["length"] < max(LENGTHS)]
    found = replicate(run, "privacy_study", replication, short, replications)
    long = [cell for cell in cells if cell not in short]
    # One of the longest takes minutes and shows what many do: its errors hardly vary.
    found += replicate(run, "privacy_study", replication, long, 1)
    cells = [*short, *long]
    rows = [row for cell, results in zip(cells, found, strict=True) for row in _rows(cell, results)]
    tables = {}
    for design in DESIGNS:
        for unit in UNITS:
            chosen = [row for row in rows if row["design"] == design and row["unit"] == unit]
            tables[f"{design}, one {unit} protected" if unit != "client" else f"{design}, a whole client protected"] = (
                _table(chosen, lengths)
            )
        _draw(output.path(f"privacy_study_{design.replace('-', '_')}.png"), design, rows, lengths)
    Report(
        "privacy_study",
        "Privacy and accuracy",
        {
            "design": f"d = {DIM}, p = 1, r = {RANK}, K = {CLIENTS}, delta = {DELTA:g}, {replications} replications "
            f"(one of T_k = {max(LENGTHS):,}); "
            "everything private but the rank (centre, scale, whitening, start, clipping, rounds)",
            "designs": "paper: largest ||A_k||_op = 0.7; ill-conditioned: largest spectral radius 0.8, not normal",
            "bounds": f"every column within {BOUND:g} of the largest standard deviation",
        },
        rows,
        tables,
        (
            "A cell holds the mean error of the low-rank part, and in brackets the share of clients that go on from "
            "the shared one; the others kept their own. Errors are means over clients and replications of the "
            "Frobenius norm.",
            _largest("every variable in its own standard deviation", rows, "private", "alone"),
            _largest("in the units of the data, as simulated", rows, "private_raw", "alone_raw"),
            *_targets(rows),
            "![ill-conditioned](privacy_study_ill_conditioned.png)",
            "![paper](privacy_study_paper.png)",
        ),
    ).write(output, picture=False)


def _largest(units: str, rows: Sequence[Mapping[str, Any]], private: str, alone: str) -> str:
    worst = max(rows, key=lambda row: row[private] / row[alone])
    return (
        f"The largest ratio of a private error to that of staying alone, {units}: {worst[private] / worst[alone]:.3f} "
        f"({worst['design']}, {worst['unit']}, T_k = {worst['length']:,}, epsilon = {worst['epsilon']:g})."
    )


def _targets(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The two cells that there are targets for, in both units."""
    words = []
    for length, epsilon in ((40_000, 2.0), (4000, 8.0)):
        for row in rows:
            if (row["length"], row["epsilon"], row["unit"]) == (length, epsilon, "observation"):
                figures = ", ".join(
                    f"{row['private' + end]:.3f} private, {row['without_privacy' + end]:.3f} without privacy, "
                    f"{row['alone' + end]:.3f} alone {units}"
                    for end, units in (("", "in standard deviations"), ("_raw", "as simulated"))
                )
                words.append(f"{row['design']}, one observation, T_k = {length:,}, epsilon = {epsilon:g}: {figures}.")
    return words


def _rows(cell: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for unit in UNITS:
        for epsilon in BUDGETS:
            some = [one[f"{unit} {epsilon:g}"] for one in results]
            clean, alone = (float(np.mean([one[what]["error"] for one in results])) for what in ("clean", "alone"))
            error = float(np.mean([one["error"] for one in some]))
            raw = [float(np.mean([one[what]["raw"] for one in results])) for what in ("clean", "alone")]
            raw.append(float(np.mean([one["raw"] for one in some])))
            rows.append(
                {
                    "design": cell["design"], "length": cell["length"], "unit": unit, "epsilon": epsilon,
                    "without_privacy": clean, "alone": alone, "private": error, "ratio": error / alone,
                    "without_privacy_raw": raw[0], "alone_raw": raw[1], "private_raw": raw[2],
                    "shared": float(np.mean([one["shared"] for one in some])),
                    "signal_to_noise": float(np.median([one["noise"] for one in some])),
                }
            )  # fmt: skip
    return rows


def _table(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    header = ["T_k", "no privacy", *(f"ε = {epsilon:g}" for epsilon in BUDGETS), "alone"]
    lines = []
    for length in lengths:
        some = {row["epsilon"]: row for row in rows if row["length"] == length}
        first = next(iter(some.values()))
        cells = [f"{some[epsilon]['private']:.3f} ({some[epsilon]['shared']:.0%})" for epsilon in BUDGETS]
        lines.append([f"{length:,}", f"{first['without_privacy']:.3f}", *cells, f"{first['alone']:.3f}"])
    return header, lines


def _draw(path: Path, design: str, rows: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> None:
    charts = []
    for unit in UNITS:
        some = [row for row in rows if row["design"] == design and row["unit"] == unit]

        def of(name: str, epsilon: float, rows: Sequence[Mapping[str, Any]] = some) -> list[float]:
            return [row[name] for row in rows if row["epsilon"] == epsilon]

        lines = [Line(f"ε = {epsilon:g}", lengths, of("private", epsilon)) for epsilon in BUDGETS]
        lines.append(Line("no privacy", lengths, of("without_privacy", BUDGETS[0]), dashed=True, colour=6))
        lines.append(Line("alone", lengths, of("alone", BUDGETS[0]), dashed=True, colour=5))
        charts.append(Chart(f"{design}: {unit}", lines, "error of the low-rank part"))
    draw_lines(path, "rows of a client", charts, log=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replications", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes; a panel of the longest takes about 3 GB in each"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--cache", type=Path, default=Path("build/paper_cache"))
    parser.add_argument("--longest", type=int, default=max(LENGTHS), help="leave out longer series")
    given = parser.parse_args(arguments)
    command = list(sys.argv[1:] if arguments is None else arguments)
    study(Run(given.jobs, given.cache), StudyOutput(given.out, command), given.replications, given.longest)


if __name__ == "__main__":
    main()
