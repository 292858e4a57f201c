"""``python -m benchmarks.paper table1 --replications 100 --jobs 2 --out docs/results``, and so on."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.paper import empirical, federated, rank_table, single
from benchmarks.paper.report import Output
from benchmarks.paper.runner import Run

_PROJECT = Path(__file__).resolve().parents[2]
#: Commands that replicate, with their usual number of replications.
_REPLICATED: dict[str, tuple[Callable[[Run, Output, int], None], int]] = {
    "table1-pilot": (rank_table.table1_pilot, 20),
    "table1": (rank_table.table1, 100),
    "fig1": (single.fig1, 100),
    "fig2": (federated.fig2, 100),
    "fig3": (federated.fig3, 100),
    "fig4": (federated.fig4, 100),
    "fig5": (federated.fig5, 100),
    "table2": (empirical.table2, empirical.DRAWS),
    "table3": (empirical.table3, empirical.DRAWS),
}
_FIXED: dict[str, Callable[[Run, Output], None]] = {"fig6": empirical.fig6, "fig7": empirical.fig7}


def main(arguments: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    run = Run(options.jobs, options.cache)
    output = Output(options.out, given)
    names = [*_REPLICATED, *_FIXED] if options.experiment == "all" else [options.experiment]
    for name in names:
        start = time.perf_counter()
        if name in _FIXED:
            _FIXED[name](run, output)
        else:
            function, usual = _REPLICATED[name]
            replications = usual if options.replications is None else options.replications
            if name == "table1":
                rank_table.table1(run, output, replications, options.penalties, not options.no_scale)
            else:
                function(run, output, replications)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description="The paper's tables and figures.")
    parser.add_argument("experiment", choices=[*_REPLICATED, *_FIXED, "all"])
    parser.add_argument("--replications", type=_positive,
                        help="100 by default, 20 of the pilot, 5 draws of the noise of table2 and table3")  # fmt: skip
    parser.add_argument("--jobs", type=_positive, default=1, help="processes; no result depends on it")
    parser.add_argument("--out", type=Path, default=_PROJECT / "docs" / "results", help="folder of the results")
    parser.add_argument("--cache", type=Path, default=_PROJECT / "build" / "paper_cache",
                        help="folder of finished replications; a rerun computes only what is missing")  # fmt: skip
    parser.add_argument("--penalties", choices=["noise-level", "cv"], default="noise-level",
                        help="of table1: by rule, or by rolling forecasts (slow)")  # fmt: skip
    parser.add_argument("--no-scale", action="store_true", help="table1 on centred data that are not scaled")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return number


if __name__ == "__main__":
    main()
