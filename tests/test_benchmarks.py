"""The benchmarks, tiny: the gate's decision, the table, the peers' answers, and every asv suite once."""

from __future__ import annotations

import inspect
import itertools
import json
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedvar_fast as fv
from benchmarks import (
    compare,
    estimators,
    federation,
    gate,
    kernels,
    measure,
    plain,
    problems,
    rows_fit,
    scaling,
    solvers,
)
from benchmarks.peers import blas, celer, loosest, missing, scikit_learn, statsmodels
from benchmarks.rows_lasso import Lassos

# -- the gate ------------------------------------------------------------------------------------------------


def failed(pairs, **thresholds):
    return [one.task for one in gate.decide(pairs, **thresholds) if one.failed]


def test_the_gate_fails_only_past_both_thresholds():
    pairs = {
        "both": [(0.10, 0.15)] * 3,
        "ratio only": [(0.010, 0.020)] * 3,
        "seconds only": [(1.00, 1.10)] * 3,
        "faster": [(0.20, 0.10)] * 3,
    }
    assert failed(pairs) == ["both"]
    assert failed(pairs, relative=1.6) == []
    assert failed(pairs, relative=1.05) == ["both", "seconds only"]
    assert failed(pairs, absolute=0.005) == ["both", "ratio only"]


def test_the_gate_takes_medians_of_pairs():
    # A machine that slows down between pairs favours neither; one wild pair decides nothing.
    assert failed({"drift": [(0.1, 0.101), (0.2, 0.202), (0.4, 0.404)]}) == []
    assert failed({"wild": [(0.1, 0.1), (0.1, 5.0), (0.1, 0.1)]}) == []
    verdict = gate.decide({"task": [(0.1, 0.2), (0.2, 0.3), (0.1, 0.4)]})[0]
    assert (verdict.base, verdict.head) == (0.1, 0.3)
    assert verdict.ratio == pytest.approx(2.0)
    assert verdict.longer == pytest.approx(0.1)
    assert "FAILED" in gate.as_table([verdict])


def test_the_gate_asks_for_a_base(capsys):
    with pytest.raises(SystemExit) as stopped:
        gate.options([])
    assert stopped.value.code == 2
    assert "give the commit" in capsys.readouterr().err


# -- the table -----------------------------------------------------------------------------------------------


def rows():
    asked = measure.Row("a", "b", "wall", 0.001, 0.02, lambda: 20.0, at_least=25, note="n")
    return [asked, measure.skipped("a", "celer", "skipped: not installed")]


def test_a_row_knows_its_target():
    assert measure.Row("a", "b", "wall", 1, 1, 2.0, at_most=3).met() == "yes"
    assert [row.met() for row in rows()] == ["NO", ""]
    assert rows()[0].target() == "at least 25"


def test_tables_hold_every_row():
    for table in (compare.as_text(rows()), compare.as_markdown(rows())):
        assert "20.0x faster" in table
        assert "skipped: not installed" in table
    written = json.loads(compare.as_json(rows()))
    assert [row["value"] for row in written["rows"]] == [20.0, None]


def test_rows_are_chosen_by_pattern():
    assert list(compare.chosen("SVD", False)) == [
        "randomised SVD, 500 x 2,000, rank 10",
        "randomised SVD, 1,000 x 4,000, rank 20",
    ]
    assert list(compare.chosen("mapped", False)) == []
    assert list(compare.chosen("mapped", True)) == [compare.LARGE]


def test_ratios_are_theirs_over_ours():
    def long():
        return sum(range(200_000))

    assert measure.faster("task", "peer", int, long, 3).number() > 1
    assert measure.costs("task", "peer", long, int, 3).number() > 1


def test_peak_memory_sees_an_array():
    # pages of their own: an ordinary array may be given memory that the process already holds from earlier tests
    size = 128 * 2**20
    with measure.PeakMemory() as memory, mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for start in range(0, size, mmap.PAGESIZE):
            held[start] = 1
    # Half of it: the process may give back memory of earlier tests meanwhile.
    assert 64 < memory.extra_mib < 256


def test_the_fit_from_mapped_files(tmp_path):
    rows_fit.write_clients(tmp_path, 2, 800, 6, 2)
    whole, alone, extra, n_rounds = rows_fit.fit_from_files(tmp_path, 2, 2)
    assert whole > 0 and alone > 0 and extra >= 0
    assert n_rounds >= 1


# -- peers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lassos():
    return Lassos(6, 2, 300)


def test_loosest_tolerance():
    assert loosest(lambda tol, n: tol, lambda coef: coef, 1e-6) == pytest.approx(1e-6)
    with pytest.raises(RuntimeError, match="no tolerance"):
        loosest(lambda tol, n: tol, lambda coef: 1.0, 1e-6)


def test_a_missing_peer_says_so():
    assert "is not installed" in missing("no_such_library_at_all")
    assert missing("sklearn") == ""


def test_lasso_peers_solve_the_same_problem(lassos):
    x, response = lassos.design
    expected = lassos.ours(tol=1e-12)
    answers = [
        scikit_learn.lasso(x, response, lassos.penalty, 1e-10),
        scikit_learn.lasso_gram(x, response, lassos.gram, lassos.penalty, 1e-10),
        plain.fista(lassos.moments.xx, lassos.moments.yx, None, lassos.moments.n_rows, lassos.penalty, 500),
    ]
    if not missing("celer"):
        answers.append(celer.lasso(x, response, lassos.penalty, 1e-12))
    # skglm compiles for many seconds; `compare` measures its gap.
    for answer in answers:
        np.testing.assert_allclose(answer, expected, atol=1e-6)
        assert lassos.gap(answer) < 1e-8


def test_moments_and_least_squares_by_blas():
    y = problems.series(300, 4)
    ours = fv.lagged_moments(y, 2)
    for peer in (blas.moments, blas.moments_scipy):
        for name, one in zip(("xx", "yx", "yy"), peer(y, 2), strict=True):
            np.testing.assert_allclose(one, getattr(ours, name), rtol=1e-10, atol=1e-10)
    if missing("statsmodels"):
        pytest.skip(missing("statsmodels"))
    np.testing.assert_allclose(statsmodels.least_squares(y, 2), blas.least_squares(y, 2), atol=1e-10)


# -- the suites ----------------------------------------------------------------------------------------------

#: Parameters where the suite's own smallest are not small enough.
TINY = {
    "Moments": (4, 2), "GradientPair": (6, 2), "Retraction": (6, 2), "RandomizedSVD": ((20, 40, 2),),
    "SingularValueThreshold": ((8, 12),), "FixedSteps": (6,), "ToGap": (6, "coordinate"),
    "Peers": (6, "scikit-learn, Gram"), "LowRankPlusSparse": (4,), "Message": (6, 2), "ServerStep": (6, 3),
}  # fmt: skip


def suites():
    modules = (kernels, solvers, estimators, federation, scaling)
    for module, (_, suite) in itertools.chain.from_iterable(
        ((module, pair) for pair in inspect.getmembers(module, inspect.isclass)) for module in modules
    ):
        if suite.__module__ == module.__name__ and any(name.startswith(("time_", "track_")) for name in vars(suite)):
            yield suite


@pytest.fixture
def small(monkeypatch):
    """The shared problems with few rows and few variables."""
    series, panel, moments = problems.series, problems.panel, problems.moments
    monkeypatch.setattr(problems, "series", lambda n, dim, seed=0: series(min(n, 400), dim, seed))
    monkeypatch.setattr(problems, "moments", lambda n, dim, order: moments(min(n, 400), dim, order))
    monkeypatch.setattr(problems, "sparse_var", lambda n, dim, order: series(min(n, 400), dim))
    monkeypatch.setattr(
        problems, "panel", lambda k=5, dim=6, order=2, n=300, rank=2: panel(k, min(dim, 6), order, min(n, 300), 2)
    )
    for name, axis in scaling.AXES.items():
        sizes = tuple(size for size in axis.sizes if "d" not in name)[:2] or (2, 4)
        monkeypatch.setitem(scaling.AXES, name, scaling.Axis(sizes, axis.task, axis.at_most))


@pytest.mark.parametrize("suite", list(suites()), ids=lambda suite: f"{suite.__module__}.{suite.__name__}")
def test_suite_runs(suite, small):
    default = tuple(choices[0] for choices in getattr(suite, "params", ()))
    arguments = TINY.get(suite.__name__, default)
    instance = suite()
    instance.setup(*arguments)
    names = [name for name in dir(suite) if name.startswith("time_")]
    for name in names:
        getattr(instance, name)(*arguments)
        assert hasattr(suite, "peakmem_" + name.removeprefix("time_")) or suite is kernels.ClippedGradient
    tracked = [name for name in dir(suite) if name.startswith("track_") and suite is not kernels.ClippedGradient]
    for name in tracked:
        assert np.isfinite(getattr(instance, name)(*arguments))


def test_every_kind_of_suite_is_found():
    names = {suite.__name__ for suite in suites()}
    assert {"Moments", "ClippedGradient", "ToGap", "Peers", "WholeFit", "Message", "Slopes", "Threads"} <= names
