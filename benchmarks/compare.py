"""One table of ratios within one run: this package beside plain NumPy and its peers, task by task.

    python benchmarks/compare.py [--repeat 5] [--only PATTERN] [--markdown] [--json FILE] [--large]

Ours and theirs run in turn, ours, theirs, ours, theirs; the ratio is taken pair by pair and its median is
printed, so that a machine whose speed drifts does not favour either.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rows_fit, rows_growth, rows_lasso, rows_lowrank, rows_moments, rows_privacy
from benchmarks.measure import PEAK
from fedvar_fast import kernels

BUILDERS = {
    **rows_moments.BUILDERS,
    **rows_lasso.BUILDERS,
    **rows_lowrank.BUILDERS,
    **rows_fit.BUILDERS,
    **rows_privacy.BUILDERS,
    **rows_growth.BUILDERS,
}
LARGE = "whole fit, d=1,000, p=2, K=8, T_k=50,000, rank 10, mapped"
HEADER = ("task", "beside", "clock", "ours, ms", "theirs, ms", "result", "target", "met", "note")


def chosen(pattern, large):
    """Builders whose name matches, in the table's order."""
    builders = dict(BUILDERS)
    if large:
        builders[LARGE] = lambda repeat: rows_fit.large_rows()
    return {name: build for name, build in builders.items() if re.search(pattern, name, re.IGNORECASE)}


def machine():
    """Processor, threads, versions and date, in one line."""
    names = ("numpy", "scipy", "scikit-learn", "celer", "skglm", "statsmodels")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    return (
        f"{datetime.date.today()}, {processor()}, {kernels.resolve_n_jobs(None)} threads, "
        f"Python {platform.python_version()}, fedvar_fast {metadata.version('fedvar_fast')}, {', '.join(versions)}"
    )


def processor():
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def milliseconds(seconds):
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.4g}"


def cells(row):
    number = row.number()
    result = row.form if math.isnan(number) else row.form.format(number)
    return (
        row.task, row.peer, row.clock, milliseconds(row.ours), milliseconds(row.theirs), result, row.target(),
        row.met(), row.note,
    )  # fmt: skip


def as_markdown(rows):
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|---|---:|---:|---:|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows])


def as_text(rows):
    table = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
    )


def as_json(rows):
    names = ("task", "peer", "clock", "ours", "theirs", "at_least", "at_most", "note")
    plain = [{name: getattr(row, name) for name in names} | {"value": row.number(), "met": row.met()} for row in rows]
    clean = [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in plain]
    return json.dumps({"machine": machine(), "peak_gflops": PEAK.best / 1e9, "rows": clean}, indent=1)


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="pairs a row")
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows whose name matches (a regular expression)")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--large", action="store_true", help="add the fit of 3.2 GB of mapped files")
    return parser.parse_args(arguments)


def main():
    given = options()
    builders = chosen(given.only, given.large)
    if not builders:
        names = "\n  ".join([*BUILDERS, f"{LARGE} (with --large)"])
        sys.exit(f"no row matches {given.only!r}; there are\n  {names}")
    rows, failed = [], []
    for number, (name, build) in enumerate(builders.items(), 1):
        print(f"[{number}/{len(builders)}] {name}", file=sys.stderr, flush=True)
        try:
            rows += build(given.repeat)
        except Exception as error:  # the rows measured already must not be lost; told at the end, by the exit code too
            failed.append(f"{name}: {type(error).__name__}: {error}")
    print(machine())
    if PEAK.best:
        print(f"best dgemm {PEAK.size} x {PEAK.size} of this run: {PEAK.best / 1e9:.1f} GFLOP/s")
    if not given.only:
        print(rows_fit.golden_line())
    print(f"\n{as_markdown(rows) if given.markdown else as_text(rows)}")
    if given.json:
        given.json.write_text(as_json(rows) + "\n")
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
