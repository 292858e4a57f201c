from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("click")

from cli_runs import refused, run, shown

import fedvar_fast as fv
from fedvar_fast import _cli_evaluate
from fedvar_fast.estimators.local import AutoregressionVAR, LassoVAR, LeastSquaresVAR, LocalVAR
from fedvar_fast.evaluation import rolling_evaluation
from fedvar_fast.rank import select_rank, vote

pytestmark = pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    panel, _ = fv.simulate_panel(3, 4, 1, 70, 1, nonzeros_per_row=1, random_state=4)
    target = tmp_path_factory.mktemp("panel") / "data"
    fv.write_panel(panel, target)
    return target


@pytest.fixture(scope="module")
def panel(folder: Path) -> fv.Panel:
    return fv.read_panel(folder)


# -- rank ----------------------------------------------------------------------------------------------------


def test_rank_is_the_rule_on_local_estimates_and_the_vote(folder, panel):
    content = json.loads(shown("rank", folder, "--nuclear-penalty", 0.2, "--l1-penalty", 0.15, "--json"))
    local = LocalVAR(1, nuclear_penalty=0.2, l1_penalty=0.15).fit(panel)
    ranks = {}
    for name in panel:
        values = np.linalg.svd(local.low_rank_[name])[1]
        choice = select_rank(values, 69, 1, 4)
        found, ranks[name] = content["clients"][name], choice.rank
        assert found["rows"] == 69 and found["rank"] == choice.rank
        np.testing.assert_allclose(found["singular_values"], values, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found["ratios"], choice.ratios, rtol=0, atol=1e-7)
    assert content["rank"] == vote(ranks) and content["order"] == 1


def test_the_table_of_rank_has_the_figures_of_the_json(folder):
    options = ("--nuclear-penalty", 0.2, "--l1-penalty", 0.15, "--max-rank", 3)
    text = shown("rank", folder, *options)
    content = json.loads(shown("rank", folder, *options, "--json"))
    assert f"Rank: {content['rank']}\n" in text
    for name, one in content["clients"].items():
        assert len(one["ratios"]) == 2
        at = [line.split()[0] for line in text.splitlines() if line].index(name)
        values, ratios = [line for line in text.splitlines() if line][at : at + 2]
        assert values.split() == [name, "69", str(one["rank"]), "s", *(f"{s:.4f}" for s in one["singular_values"][:3])]
        marked = [f"{ratio:.4f}{'*' if r == one['rank'] else ''}" for r, ratio in enumerate(one["ratios"], 1)]
        assert ratios.split() == ["ratio", *marked]


def test_clients_without_a_low_rank_part_do_not_vote(folder):
    text = shown("rank", folder, "--nuclear-penalty", 1e6, "--l1-penalty", 0.1)
    assert "3 without a vote" in text and text.endswith("Rank: 0\n")
    content = json.loads(shown("rank", folder, "--nuclear-penalty", 1e6, "--l1-penalty", 0.1, "--json"))
    assert content["rank"] == 0 and all(one["rank"] is None for one in content["clients"].values())


def test_rank_tunes_by_default(folder, panel):
    content = json.loads(shown("rank", folder, "--json"))
    local = LocalVAR(1).fit(panel)
    np.testing.assert_allclose(
        content["clients"]["client_1"]["singular_values"], np.linalg.svd(local.low_rank_["client_1"])[1], atol=1e-8
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [(["--max-rank", 1], "from 2 to 4"), (["--order", 0], "--order"), (["--l1-penalty", -1], "--l1-penalty")],
)
def test_wrong_options_of_rank(folder, options, text):
    assert text in refused("rank", folder, "--nuclear-penalty", 0.2, *options)


# -- evaluate ------------------------------------------------------------------------------------------------

FEW = ("--methods", "ls,ar", "--origins", 5)


def test_evaluate_is_rolling_evaluation(folder, panel):
    text = shown(
        "evaluate", folder, "--methods", "ar,ls,l1,fedvar", "--rank", 1, "--origins", 4, "--baseline", "ls",
        "--window", "rolling", "--window-length", 50, "--retune-every", 3, "--units", "scaled", "--clip", 4,
        "--horizon", 2, "--format", "json", "--jobs", 1,
    )  # fmt: skip
    estimators = {
        "AR": AutoregressionVAR(1, clip=4.0),
        "LS": LeastSquaresVAR(1, clip=4.0),
        "L1": LassoVAR(1, clip=4.0),
        "FedVAR": fv.FedVAR(1, 1, clip=4.0),
    }
    expected = rolling_evaluation(
        panel, estimators, 4, horizon=2, window="rolling", window_length=50, retune_every=3, units="scaled",
        baseline="LS",
    )  # fmt: skip
    assert json.loads(text) == json.loads(expected.table("json"))


def test_all_methods_are_there_by_default(folder):
    text = shown("evaluate", folder, "--origins", 3, "--rank", 1)
    header = text.splitlines()[2].split()
    assert header == ["client", "LS", "AR", "Nuc", "L1", "Nuc+L1", "FedVAR", "mean", "zero"]


def test_privacy_settings_side_by_side(folder):
    options = ("--methods", "fedvar", "--rank", 1, "--origins", 2, "--seed", 3, "--format", "csv")
    result = run(
        "evaluate", folder, *options, "--privacy", "2,1e-5", "--privacy", "0.1,0.01", "--epsilon", 8, "--delta", 0.1
    )
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    methods = [row["method"] for row in rows if row["client"] == "mean"]
    assert methods == ["FedVAR", "FedVAR(2,1e-05)", "FedVAR(0.1,0.01)", "FedVAR(8,0.1)", "mean", "zero"]
    assert len({row["rmsfe"] for row in rows if row["client"] == "mean"}) == 6
    assert result.stderr.count("NOT PRIVATE") == 1
    again = run("evaluate", folder, *options, "--privacy", "2,1e-5")
    same = [row for row in csv.DictReader(io.StringIO(again.stdout)) if row["method"] == "FedVAR(2,1e-05)"]
    assert same == [row for row in rows if row["method"] == "FedVAR(2,1e-05)"]


@pytest.mark.parametrize("form", ["text", "markdown", "csv", "json"])
def test_the_table_goes_to_a_file_whole(folder, tmp_path, form):
    out = tmp_path / "table"
    assert shown("evaluate", folder, *FEW, "--format", form, "--out", out) == f"wrote the table: {out}\n"
    assert out.read_text(encoding="utf-8") == shown("evaluate", folder, *FEW, "--format", form)
    assert list(tmp_path.iterdir()) == [out]


def test_an_error_leaves_an_old_file_as_it_was(folder, tmp_path):
    out = tmp_path / "table"
    out.write_text("old")
    refused("evaluate", folder, "--origins", 500, "--out", out)
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]


def test_the_table_must_not_become_a_client(folder, tmp_path):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for out in (folder / "client_1.csv", folder / "table.csv"):
        assert "elsewhere" in refused("evaluate", folder, *FEW, "--out", out)
    assert "elsewhere" in refused("evaluate", folder / "client_1.csv", *FEW, "--out", folder / "client_1.csv")
    assert "no folder" in refused("evaluate", folder, *FEW, "--out", tmp_path / "no" / "table")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_progress_bar_at_a_terminal_unless_quiet(folder, monkeypatch):
    pytest.importorskip("tqdm")
    assert run("evaluate", folder, *FEW).stderr == ""
    monkeypatch.setattr(_cli_evaluate, "stderr_is_terminal", lambda: True)
    assert "10/10" in run("evaluate", folder, *FEW).stderr
    assert run("evaluate", folder, *FEW, "--quiet").stderr == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(_cli_evaluate.importlib.util, "find_spec", lambda name: None)
    assert run("evaluate", folder, *FEW).exit_code == 0


def test_the_same_warning_is_shown_once(tmp_path):
    values = np.random.default_rng(0).standard_normal((40, 2))
    values[:, 1] = 3.0
    (tmp_path / "a.csv").write_text("x,y\n" + "\n".join(f"{x},{y}" for x, y in values))
    result = run("evaluate", tmp_path, "--methods", "ls,ar", "--origins", 6, "--window", "rolling")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("never change") == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--methods", "ls,gp"], "'gp' is no method"),
        (["--methods", "ls,ls"], "twice"),
        (["--privacy", "2"], "two numbers"),
        (["--privacy", "a,b"], "two numbers"),
        (["--epsilon", 2], "--delta"),
        (["--delta", 0.1], "--epsilon"),
        (["--window", "sliding"], "sliding"),
        (["--format", "xml"], "xml"),
        (["--rank", "some"], "neither 'auto' nor a whole number"),
    ],
)
def test_usage_errors(folder, options, text):
    result = run("evaluate", folder, *options)
    assert result.exit_code == 2 and text in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--origins", 0], "origins=0"),
        (["--origins", 68], "'client_1' (70), 'client_2' (70), 'client_3' (70)"),
        (["--horizon", 0], "horizon=0"),
        (["--retune-every", 0], "every=0"),
        (["--window", "rolling", "--window-length", 80], "at least 100 rows"),
        (["--window-length", 30], "expanding window"),
        (["--baseline", "nuc"], "none of the methods"),
        (["--privacy", "-1,0.1"], "epsilon"),
        (["--order", 0], "--order"),
        (["--clip", 0], "--clip"),
        (["--jobs", 0], "--jobs"),
        (["--time", "when"], "when"),
    ],
)
def test_wrong_options_are_one_line(folder, options, text):
    assert text in refused("evaluate", folder, "--methods", "ls", *options)


def test_the_group_lists_both():
    text = shown("--help")
    assert "rank" in text and "evaluate" in text
    assert "nuc+l1" in shown("evaluate", "--help") and "ridge-type" in shown("rank", "-h")
