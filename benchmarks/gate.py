"""Two commits side by side in one job: fails only when a task is slower both relatively and absolutely.

    python benchmarks/gate.py BASE HEAD [--relative 1.2] [--absolute 0.02] [--pairs 7]

Each commit is taken out of the repository (git archive), built into a wheel and unpacked into a temporary folder; the
tasks of this file run on both in turn, base, head, base, head, each time in a process of its own. Exit code 1 where,
in the median of the pairs, head takes more than `relative` times base's time and more than `absolute` seconds longer.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Verdict:
    """One task: medians in seconds, median of head / base and of head - base over the pairs."""

    task: str
    base: float
    head: float
    ratio: float
    longer: float
    failed: bool


def decide(pairs, relative=1.2, absolute=0.02):
    """Verdicts on ``{task: [(base, head), ...]}``, seconds; a task fails only when it passes both thresholds."""
    verdicts = []
    for task, seconds in pairs.items():
        base, head = np.array(seconds, dtype=float).T
        ratio, longer = float(np.median(head / base)), float(np.median(head - base))
        failed = ratio > relative and longer > absolute
        verdicts.append(Verdict(task, float(np.median(base)), float(np.median(head)), ratio, longer, failed))
    return verdicts


def as_table(verdicts):
    lines = [f"{'task':<42} {'base, ms':>10} {'head, ms':>10} {'ratio':>7} {'longer, ms':>11}"]
    for one in verdicts:
        mark = "  FAILED" if one.failed else ""
        times = f"{1e3 * one.base:>10.1f} {1e3 * one.head:>10.1f} {one.ratio:>7.2f} {1e3 * one.longer:>11.1f}"
        lines.append(f"{one.task:<42} {times}{mark}")
    return "\n".join(lines)


# -- what is measured: public names only, so that older commits have them ------------------------------------


def tasks():
    """A small fixed set, a tenth of a second or so each."""
    import fedvar_fast as fv

    rng = np.random.default_rng(0)
    tall, wide = rng.standard_normal((400_000, 25)), rng.standard_normal((40_000, 100))
    matrix = rng.standard_normal((500, 10)) @ rng.standard_normal((10, 2000)) + 0.1 * rng.standard_normal((500, 2000))
    panel, _ = fv.simulate_panel(1, 100, 4, 4000, rank=0, nonzeros_per_row=6, random_state=0)
    moments = fv.lagged_moments(panel[panel.clients[0]].values, 4)
    penalty = 0.2 * float(np.max(np.abs(moments.yx))) / moments.n_rows
    large, _ = fv.simulate_panel(5, 100, 2, 2000, rank=3, nonzeros_per_row=6, random_state=0)
    small, _ = fv.simulate_panel(5, 12, 4, 414, rank=3, nonzeros_per_row=3, random_state=0)
    return {
        "moments, d=25, p=4, T=400,000": lambda: fv.lagged_moments(tall, 4),
        "moments, d=100, p=4, T=40,000": lambda: fv.lagged_moments(wide, 4),
        "100 lassos to a gap, d=100, p=4, 20 times": lambda: [
            fv.lasso_on_moments(moments, penalty, tol=1e-6) for _ in range(20)
        ],
        "20 FISTA steps, d=100, p=4, 5 times": lambda: [
            fv.lasso_on_moments(moments, penalty, tol=None, max_iter=20) for _ in range(5)
        ],
        "randomised SVD, 500 x 2,000, 3 times": lambda: [fv.randomized_svd(matrix, 10) for _ in range(3)],
        "whole fit, d=100, p=2, K=5": lambda: fv.FedVAR(2, 3, n_rounds=50, l1_penalty=0.1, local_tol=1e-6).fit(large),
        "tuned fit, d=12, p=4, K=5": lambda: fv.FedVAR(4, 3).fit(small),
    }


def measure(site):
    """Best of three of every task, after a warm-up, as JSON; the package must be the one in `site`."""
    import fedvar_fast

    if not Path(fedvar_fast.__file__).is_relative_to(site):
        sys.exit(f"measured {fedvar_fast.__file__}, not the package in {site}")
    found = {}
    for name, task in tasks().items():
        task()
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            task()
            seconds.append(time.perf_counter() - start)
        found[name] = min(seconds)
    print(json.dumps(found))


# -- building and running ------------------------------------------------------------------------------------


def take_out(commit, folder, repository):
    """The files of a commit; nothing in the repository changes."""
    command = ["git", "-C", str(repository), "archive", "--format=tar", commit]
    packed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def build(commit, folder, repository=ROOT):
    """Builds a commit and returns the folder to put in front of the path."""
    source, wheels, site = folder / "source", folder / "wheels", folder / "site"
    for path in (source, wheels, site):
        path.mkdir(parents=True)
    take_out(commit, source, repository)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # What builds is here already where the environment was made for development: nothing is downloaded then.
    here = all(importlib.util.find_spec(name) for name in ("Cython", "setuptools"))
    isolation = ["--no-build-isolation"] if here else []
    subprocess.run([*pip, "wheel", "--no-deps", *isolation, "--wheel-dir", wheels, source], check=True)
    wheel = next(wheels.glob("fedvar_fast-*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site


def run_once(site, folder):
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", str(site)]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    return json.loads(done.stdout.splitlines()[-1])


def run_pairs(sites, folder, n_pairs):
    """``{task: [(base, head), ...]}`` of the tasks that both have."""
    pairs = {}
    for number in range(1, n_pairs + 1):
        print(f"pair {number} of {n_pairs}", file=sys.stderr, flush=True)
        base, head = (run_once(site, folder) for site in sites)
        for task in base.keys() & head.keys():
            pairs.setdefault(task, []).append((base[task], head[task]))
    return dict(sorted(pairs.items()))


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", nargs="?", help="commit, branch or tag to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="the one that is judged")
    parser.add_argument("--relative", type=float, default=1.2, help="allowed ratio of times")
    parser.add_argument("--absolute", type=float, default=0.02, help="allowed difference in seconds")
    parser.add_argument("--pairs", type=int, default=7, help="runs of each, in turn")
    parser.add_argument("--repository", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not (given.base or given.measure):
        parser.error("give the commit to compare with")
    return given


def main():
    given = options()
    if given.measure:
        return measure(given.measure.resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        sites = []
        for side, commit in (("base", given.base), ("head", given.head)):
            print(f"building {side} ({commit})", file=sys.stderr, flush=True)
            sites.append(build(commit, folder / side, given.repository))
        verdicts = decide(run_pairs(sites, folder, given.pairs), given.relative, given.absolute)
    print(as_table(verdicts))
    failed = [one.task for one in verdicts if one.failed]
    bounds = f"more than {given.relative:g} times and {1e3 * given.absolute:g} ms longer"
    print(f"\n{len(failed)} of {len(verdicts)} tasks take {bounds}" + (f": {'; '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
