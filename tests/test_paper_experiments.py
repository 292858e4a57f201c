"""The experiments of the paper, tiny: they run, resume, and use the package's own estimators' answers."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

import fedvar_fast as fv
from benchmarks.paper import design, empirical, federated, figures, pilots, rank_table, report, runner, single
from benchmarks.paper.__main__ import main

SMALL = design.Cell(n_rows=60, rank=1, n_clients=2)


@pytest.fixture
def run(tmp_path):
    return runner.Run(jobs=1, cache=tmp_path / "cache")


@pytest.fixture
def small(monkeypatch):
    """A design of four variables, and few pilots."""
    for module in (design, rank_table):
        monkeypatch.setattr(module, "DIM", 4)
    monkeypatch.setattr(rank_table, "RANKS", (1,))
    monkeypatch.setattr(rank_table, "LENGTHS", (60, 80))
    monkeypatch.setattr(rank_table, "PUBLISHED", {1: (68.2, 99.4)})
    for module in (single, federated):
        monkeypatch.setattr(module, "LENGTHS", (60, 80))
    monkeypatch.setattr(federated, "CLIENTS", (2, 3))
    monkeypatch.setattr(federated, "EPSILONS", (1.0, 8.0))
    monkeypatch.setattr(federated, "DELTAS", (0.1,))
    for name, value in {"LOCAL_PILOTS": 1, "SHARED_PILOTS": 1, "NUCLEAR": (1.0,), "L1": (1.0, 2.0)}.items():
        monkeypatch.setattr(pilots, name, value)
    monkeypatch.setattr(pilots, "STEPS", (0.25, 0.0625))
    monkeypatch.setattr(pilots, "SHARED_L1", (1.0,))
    monkeypatch.setattr(federated, "Cell", lambda n_rows=60, rank=2, n_clients=2: design.Cell(n_rows, rank, n_clients))


# -- seeds and rules -----------------------------------------------------------------------------------------


def test_seeds_depend_on_purpose_cell_and_number_only():
    seeds = {
        design.seed_of(purpose, cell, number)
        for purpose in ("pilot", "evaluated")
        for cell in (SMALL, design.Cell())
        for number in range(3)
    }
    assert len(seeds) == 12
    assert design.seed_of("pilot", SMALL, 2) == design.seed_of("pilot", design.Cell(60, 1, 2), 2)


def test_rule_is_the_size_of_the_gradient_s_noise():
    rng = np.random.default_rng(0)
    n, nuclear, largest = 2000, [], []
    for _ in range(5):
        noise = 2.0 / n * rng.standard_normal((50, n)) @ rng.standard_normal((n, 50))
        nuclear.append(np.linalg.norm(noise, 2))
        largest.append(np.abs(noise).max())
    rule = design.noise_level_penalties(n)
    assert np.mean(nuclear) == pytest.approx(rule[0], rel=0.1)
    assert np.mean(largest) == pytest.approx(rule[1], rel=0.15)
    assert rule == pytest.approx((2.0 * design.nuclear_unit(n), 2.0 * design.l1_unit(n)))


# -- the runner ----------------------------------------------------------------------------------------------


def _counted(calls):
    def function(settings, number):
        calls.append(number)
        return {"value": settings["x"] * number}

    return function


def test_rerun_computes_only_what_is_missing(run):
    calls: list[int] = []
    cells = [{"x": 2}, {"x": 3}]
    first = runner.replicate(run, "toy", _counted(calls), cells, 3)
    assert first == [[{"value": 2 * i} for i in range(3)], [{"value": 3 * i} for i in range(3)]]
    assert runner.replicate(run, "toy", _counted(calls), cells, 4)[0][:3] == first[0]
    assert calls == [0, 1, 2, 0, 1, 2, 3, 3]


def test_other_settings_have_another_cache(run):
    calls: list[int] = []
    runner.replicate(run, "toy", _counted(calls), [{"x": 2}], 1)
    runner.replicate(run, "toy", _counted(calls), [{"x": 4}], 1)
    runner.replicate(run, "other", _counted(calls), [{"x": 2}], 1)
    assert len(calls) == 3


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_line_that_a_crash_cut_off_is_computed_again(run, cut):
    calls: list[int] = []
    whole = runner.replicate(run, "toy", _counted(calls), [{"x": 2}], 3)
    (file,) = run.cache.glob("toy-*.jsonl")
    file.write_bytes(file.read_bytes()[:-cut])
    assert runner.replicate(run, "toy", _counted(calls), [{"x": 2}], 3) == whole
    assert runner.replicate(run, "toy", _counted(calls), [{"x": 2}], 3) == whole
    assert calls in ([0, 1, 2], [0, 1, 2, 2])
    assert {json.loads(line)["replication"] for line in file.read_text().splitlines()[1:] if line[-1:] == "}"} >= {0, 1}


def test_what_was_done_before_a_failure_is_kept(run):
    def failing(settings, number):
        if number == 2:
            raise ArithmeticError("no")
        return number

    with pytest.raises(ArithmeticError):
        runner.replicate(run, "toy", failing, [{}], 4)
    calls: list[int] = []
    cells: list[dict[str, int]] = [{}]
    runner.replicate(run, "toy", lambda settings, number: calls.append(number), cells, 3)
    assert calls == [2]


# -- the experiments -----------------------------------------------------------------------------------------


def test_votes_are_those_of_local_var():
    settings = rank_table._settings(2, 120, "noise-level", True)
    found = rank_table.table_replication(settings, 0)
    cell = design.Cell(120, 2)
    arrays, _ = design.panel_of(cell, design.seed_of("evaluated", cell, 0))
    nuclear, l1 = design.noise_level_penalties(119)
    model = fv.LocalVAR(1, nuclear, l1, tol=1e-7, n_jobs=1).fit(arrays)
    ranks = [rank_table.client_rank(model.low_rank_[name], design.moments_of(arrays[name])) for name in arrays]
    assert found["votes"] == ranks


def test_ranks_do_not_depend_on_the_tolerance():
    settings = rank_table._settings(3, 400, "noise-level", True)
    found = [rank_table.table_replication(settings | {"tol": tol}, 0)["rank"] for tol in (1e-4, 1e-5, 1e-8)]
    assert found == [3, 3, 3]


def test_trace_ends_where_fit_shared_does():
    cell = design.Cell(60, 2, 2)
    arrays, truth = design.panel_of(cell, 1)
    moments = {name: design.moments_of(design.standardize(one, scale=False)) for name, one in arrays.items()}
    start = next(iter(moments.values())).yx / 100.0
    for budget in ((2.0, 0.1), None):
        errors = federated.trace(moments, start, 2, 0.25, budget, 5, truth.A0)
        fit = pilots.shared_fit(moments, start, 2, 0.25, budget, 5)
        assert len(errors) == fit.n_rounds + 1
        assert errors[-1] == pytest.approx(np.linalg.norm(fit.point.dense() - truth.A0), rel=1e-9)


def test_tables_and_pictures_are_written(small, run, tmp_path):
    output = report.Output(tmp_path / "out", ["smoke"])
    rank_table.table1(run, output, 2)
    single.fig1(run, output, 2)
    for figure in (federated.fig2, federated.fig3, federated.fig4, federated.fig5):
        figure(run, output, 2)
    for name in ("table1", "fig1", "fig2", "fig3", "fig4", "fig5"):
        text = output.path(f"{name}.md").read_text()
        assert "command: `python -m benchmarks.paper smoke`" in text
        assert "0.7" in text and "replications: 2" in text
        assert "nan" not in text
        assert output.path(f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        lines = output.path(f"{name}.csv").read_text().splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        assert rows and all(None not in row.values() for row in rows)


def test_command_line_resumes_from_its_cache(small, tmp_path, capsys):
    given = ["table1", "--replications", "1", "--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    main(given)
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir())
    main(given)
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()) == before
    assert "table1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["table1", "--replications", "0"])


def test_pictures_have_one_scale_per_row_and_no_signed_zero(tmp_path):
    rows = [{"a": np.array([[-0.001, 2.0]]), "b": np.array([[0.5, 0.0]])}]
    axis = figures.Axis("x", (1.0, 2.0))
    figures.draw_heatmaps(tmp_path / "a.png", axis, figures.Axis("y", (1.0,)), rows, ["RdBu"])
    assert (tmp_path / "a.png").stat().st_size > 0


def test_noise_of_the_empirical_part_is_the_paper_s():
    privacy = empirical.private((0.2, 0.05))
    assert privacy.round_sigma(privacy.kappa) == pytest.approx(np.sqrt(2 * np.log(25.0)) / 2.0)


def test_empirical_figures_match_the_authors_least_squares(data_dir, run, tmp_path, monkeypatch):
    """Only what is cheap: the panels as given, which is how the authors' program takes them."""
    monkeypatch.setenv("FEDVAR_DATA", str(data_dir))
    settings = {"panel": "macro", "rank": 4, "clip": None, "method": "LS as given", "budget": None}
    losses = empirical.evaluation(settings, 0)["losses"]["LS as given"]
    mean = np.mean([np.sqrt(np.mean(one)) for one in losses.values()])
    assert mean == pytest.approx(3.17, abs=5e-3)
