from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("click")

from cli_runs import done, refused, run, table

import fedvar_fast as fv
from fedvar_fast import _cli_commands
from fedvar_fast._cli_support import _in_flags, plain
from fedvar_fast.readers import read_panel

COMMANDS = ("demo", "simulate", "fit", "forecast", "report", "rank", "evaluate")


# -- help and usage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_everywhere(flag: str) -> None:
    text = done(flag).stdout
    assert all(name in text for name in COMMANDS)
    assert "\\b" not in text and "\b" not in text
    for name in COMMANDS:
        assert f"Usage: fedvar-fast {name}" in done(name, flag).stdout


def test_version() -> None:
    assert fv.__version__ in done("--version").stdout


def test_mistyped_option_and_command_are_usage_errors_with_a_suggestion(panel_dir: Path) -> None:
    wrong_option = run("fit", panel_dir, "--ordr", 2, "--out", "m")
    assert wrong_option.exit_code == 2 and "--order" in wrong_option.stderr
    assert run("fti").exit_code == 2
    assert run("fit", panel_dir).exit_code == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--epsilon", 1], "--delta"),
        (["--delta", 1e-5], "--epsilon"),
        (["--kappa", 1], "--epsilon"),
        (["--rounds", "some"], "neither 'auto' nor a whole number"),
        (["--step", "big"], "neither 'auto' nor 'cv' nor a number"),
        (["--order", "x"], "--order"),
        (["--missing", "fill"], "error"),
    ],
)
def test_options_that_do_not_go_are_usage_errors(
    panel_dir: Path, tmp_path: Path, options: list[object], text: str
) -> None:
    result = run("fit", panel_dir, "--out", tmp_path / "m", *options)
    assert result.exit_code == 2 and text in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--order", 0], "--order"),
        (["--order", 500], "client_1"),
        (["--rank", 5], "--rank"),
        (["--rank", -1], "--rank"),
        (["--rounds", 0], "--rounds"),
        (["--step", 0], "--step"),
        (["--l1-penalty", "nan"], "--l1-penalty"),
        (["--local-iter", -1], "--local-iter"),
        (["--clip", 0], "--clip"),
        (["--jobs", 0], "--jobs"),
        (["--seed", -1], "--seed"),
        (["--epsilon", -1, "--delta", 1e-5], "--epsilon"),
        (["--epsilon", 1, "--delta", 2], "--delta"),
        (["--time", "when"], "when"),
        (["--client", "who"], "--client"),
        (["--freq", "QQQ"], "QQQ"),
    ],
)
def test_options_out_of_range_name_the_flag_and_leave_nothing(
    panel_dir: Path, tmp_path: Path, options: list[object], text: str
) -> None:
    assert text in refused("fit", panel_dir, "--out", tmp_path / "m", *options)
    assert not list(tmp_path.iterdir())


def test_python_options_become_flags_but_names_of_the_user_stay() -> None:
    assert _in_flags("n_rounds=0 is wrong") == "--rounds=0 is wrong"
    assert _in_flags('pass missing="drop"') == "pass --missing drop"
    assert _in_flags("column 'rank=' and rank 3") == "column 'rank=' and rank 3"
    assert _in_flags("give Privacy(bounds=...), or center=False") == "give --bounds=..., or --no-center"


def test_refusals_of_a_private_fit_speak_of_flags(panel_dir: Path, tmp_path: Path) -> None:
    private = ("--rank", 1, "--epsilon", 2, "--delta", 1e-5, "--out", tmp_path / "m")
    line = refused("fit", panel_dir, *private)
    assert "--bounds=" in line and "--no-scale" in line and "Privacy(" not in line
    assert "got 0" in refused("fit", panel_dir, *private[:2], "--epsilon", 0, *private[4:], "--bounds", "-9,9")
    assert "'v9', which is no column" in refused("fit", panel_dir, *private, "--bounds", "-9,9", "--sensitive", "v9")
    assert list(tmp_path.iterdir()) == []


# -- what cannot be read or written --------------------------------------------------------------------------


def broken(folder: Path, kind: str) -> Path:
    rng = np.random.default_rng(0)
    dates = [f"2000-{month:02d}-01" for month in range(1, 13)]
    for client in ("north", "south"):
        rows = [[date, *map(repr, rng.standard_normal(2).tolist())] for date in dates]
        header = "date,a,b"
        if client == "south":
            if kind in ("", "abc", "inf"):
                rows[4][2] = kind
            elif kind == "duplicate":
                rows[5][0] = rows[4][0]
            elif kind == "gap":
                del rows[5]
            elif kind == "column":
                header = "date,a,a"
            elif kind == "ragged":
                rows[4].pop()
            elif kind == "constant":
                rows = [[row[0], "1.5", row[2]] for row in rows]
        text = "\n".join([header, *map(",".join, rows)]) + "\n"
        (folder / f"{client}.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("", ["'south'", "'b'", "row 5", "2000-05-01", "--missing drop"]),
        ("abc", ["'south'", "'b'", "row 5", "'abc'"]),
        ("inf", ["'south'", "'b'", "row 5", "infinite"]),
        ("duplicate", ["'south'", "2000-05-01", "5, 6"]),
        ("gap", ["'south'", "2000-06-01", "--missing drop"]),
        ("column", ["south.csv", "twice", "'a'"]),
        ("ragged", ["south.csv", "line 6"]),
    ],
)
def test_data_errors_say_where(tmp_path: Path, kind: str, parts: list[str]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    line = refused("fit", broken(data, kind), "--out", tmp_path / "m")
    assert all(part in line for part in parts), line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("kind", ["", "gap"])
def test_missing_drop(tmp_path: Path, kind: str) -> None:
    # Given, not tuned: the example's few rows leave none for rolling forecasts.
    given = ("--rank", 1, "--l1-penalty", "rate")
    done("fit", broken(tmp_path, kind), *given, "--missing", "drop", "--out", tmp_path / "m")
    assert len(table(done("forecast", tmp_path / "m").stdout)) == 2


def test_warnings_are_single_lines_on_stderr(tmp_path: Path) -> None:
    given = ("--rank", 1, "--l1-penalty", "rate")
    result = done("fit", broken(tmp_path, "constant"), *given, "--out", tmp_path / "m", "--json")
    assert result.stderr.startswith("warning: client 'south'") and result.stderr.count("\n") == 1
    json.loads(result.stdout)


def test_folders_and_files_that_are_not_data(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "x.csv"
    empty.mkdir()
    binary.write_bytes(b"a,b\n\x00\xff\xfe,1\n")
    out = tmp_path / "m"
    assert "no such file or folder" in refused("fit", tmp_path / "nowhere", "--out", out)
    assert "empty" in refused("fit", empty, "--out", out)
    assert "x.csv" in refused("fit", binary, "--out", out)
    assert run("fit", "", "--out", out).exit_code == 2
    assert not out.exists()


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_unreadable_file(tmp_path: Path) -> None:
    file = broken(tmp_path, "none") / "south.csv"
    file.chmod(0)
    if os.access(file, os.R_OK):  # root reads everything: a link to itself cannot be read by anyone
        file.unlink()
        file.symlink_to(file)
        file = tmp_path / "south.csv"
        refused("fit", file, "--out", tmp_path / "m")
    else:
        assert "south.csv" in refused("fit", tmp_path, "--out", tmp_path / "m")


def test_out_is_checked_before_the_work(panel_dir: Path, model_file: Path, tmp_path: Path) -> None:
    assert "folder" in refused("fit", panel_dir, "--out", tmp_path)
    assert "no folder" in refused("fit", panel_dir, "--out", tmp_path / "no" / "m")
    data = next(panel_dir.glob("*.csv"))
    before = data.read_bytes()
    assert "data file" in refused("fit", panel_dir, "--out", data)
    assert data.read_bytes() == before
    assert "model itself" in refused("forecast", model_file, "--out", model_file)


def test_what_is_no_model(panel_dir: Path, tmp_path: Path) -> None:
    for command in ("forecast", "report"):
        assert "no model file" in refused(command, tmp_path / "nothing.npz")
        assert "model file" in refused(command, panel_dir / "truth.npz")
        assert "model file" in refused(command, panel_dir / "client_1.csv")
        refused(command, tmp_path)


# -- simulate ------------------------------------------------------------------------------------------------


def test_simulate_writes_the_panel_and_its_truth(panel_dir: Path) -> None:
    names = sorted(path.name for path in panel_dir.iterdir())
    assert names == ["client_1.csv", "client_2.csv", "client_3.csv", "truth.npz"]
    panel, truth = fv.simulate_panel(3, 4, 1, 60, 1, nonzeros_per_row=1, random_state=3)
    back = read_panel(panel_dir)
    with np.load(panel_dir / "truth.npz", allow_pickle=False) as stored:
        assert list(stored["clients"]) == list(panel.clients)
        np.testing.assert_array_equal(stored["A0"], truth.A0)
        for k, name in enumerate(panel.clients):
            np.testing.assert_array_equal(back[name].values, panel[name].values)
            np.testing.assert_array_equal(stored["coef"][k], truth.coef[name])
            np.testing.assert_array_equal(stored["deltas"][k], truth.deltas[name])


def test_simulate_replaces_only_when_told(tmp_path: Path) -> None:
    options = ("--dim", 3, "--rows", 20)
    done("simulate", tmp_path / "s", "--clients", 2, *options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    assert "--overwrite" in refused("simulate", tmp_path / "s", "--seed", 1, *options)
    assert {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before
    result = done("simulate", tmp_path / "s", "--clients", 1, "--seed", 1, "--overwrite", *options)
    assert result.stderr.startswith("warning: ") and "client_2.csv" in result.stderr


@pytest.mark.parametrize(
    "options", [["--stability", 2], ["--rank", 9, "--dim", 3], ["--nonzeros", 0], ["--clients", 0], ["--seed", -1]]
)
def test_simulate_refuses_and_leaves_nothing(tmp_path: Path, options: list[object]) -> None:
    assert str(options[0]) in refused("simulate", tmp_path / "s", *options)
    assert not list(tmp_path.iterdir())


def test_simulate_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "truth.npz")

    monkeypatch.setattr(_cli_commands, "_write_truth", full)
    assert refused("simulate", tmp_path / "s", "--dim", 3) == "error: truth.npz: No space left on device\n"
    assert not list(tmp_path.iterdir())


# -- fit, forecast, report -----------------------------------------------------------------------------------


def test_fit_is_the_fit_of_python(panel_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.npz"
    options = ("--order", 2, "--rank", 2, "--l1-penalty", 0.1, "--shared-solver", "exact", "--ridge", 0.01)
    rest = ("--local-iter", 50, "--clip", 3, "--no-center", "--no-scale", "--jobs", 1)
    described = json.loads(done("fit", panel_dir, "--out", out, *options, *rest, "--json").stdout)
    model = fv.FedVAR(
        2, 2, l1_penalty=0.1, shared_solver="exact", ridge=0.01, local_iter=50, clip=3.0, center=False, scale=False,
        n_jobs=1,
    ).fit(read_panel(panel_dir))  # fmt: skip
    loaded = fv.load(out)
    assert loaded.get_params() == model.get_params()
    for name in model.clients_:
        np.testing.assert_array_equal(loaded.coef_[name], model.coef_[name])
    assert list(described["clients"]) == list(model.clients_) and described["private"] is False
    assert described["clients"]["client_2"]["rows"] == 60


def test_fit_replaces_a_model_and_can_be_quiet(panel_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    first = done("fit", panel_dir, "--out", out)
    assert "FedVAR: 3 client(s)" in first.stdout and first.stderr == ""
    quiet = done("fit", panel_dir, "--out", out, "--rank", 2, "--quiet")
    assert quiet.stdout == "" and quiet.stderr == ""
    assert fv.load(out).rank_ == 2
    assert list(tmp_path.iterdir()) == [out]


def test_one_long_file(panel_dir: Path, tmp_path: Path) -> None:
    long = pd.concat(
        [pd.read_csv(path).assign(who=path.stem) for path in sorted(panel_dir.glob("*.csv"))], ignore_index=True
    )
    long.to_csv(tmp_path / "long.csv", index=False)
    done("fit", tmp_path / "long.csv", "--client", "who", "--time", "date", "--freq", "MS", "--out", tmp_path / "a")
    done("fit", panel_dir, "--out", tmp_path / "b")
    here, there = (done("forecast", tmp_path / name).stdout.splitlines() for name in "ab")
    assert here[0].startswith("who,date,") and here[1:] == there[1:]


def test_forecast_is_exact_in_csv_and_json(model_file: Path, tmp_path: Path) -> None:
    frame = fv.load(model_file).forecast(3)
    rows = table(done("forecast", model_file, "--steps", 3).stdout)
    assert [float(row["y2"]) for row in rows] == frame["y2"].tolist()
    assert rows[0]["date"] == "2005-01-01" and rows[0]["client"] == "client_1"
    shown = json.loads(done("forecast", model_file, "--steps", 3, "--json").stdout)
    assert [record["y2"] for record in shown["forecasts"]] == frame["y2"].tolist()
    out = tmp_path / "f.csv"
    done("forecast", model_file, "--steps", 3, "--out", out)
    assert table(out.read_text(encoding="utf-8")) == rows


def test_forecast_intervals(model_file: Path) -> None:
    rows = table(done("forecast", model_file, "--steps", 2, "--level", 50, "--level", 90).stdout)
    assert len(rows) == 3 * 2 * 4 * 2 and {row["level"] for row in rows} == {"50.0", "90.0"}
    assert all(float(row["lower"]) < float(row["mean"]) < float(row["upper"]) for row in rows)
    assert "--level" in refused("forecast", model_file, "--level", 100)
    assert "--steps" in refused("forecast", model_file, "--steps", 0)


def test_forecast_of_a_model_of_other_frames_and_without_times(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"year": range(1960, 2000), "x": rng.standard_normal(40), "z": rng.standard_normal(40)})
    fv.FedVAR().fit({"one": frame}).save(tmp_path / "p")
    assert table(done("forecast", tmp_path / "p").stdout)[0]["year"] == "2000"
    model = fv.FedVAR().fit({"one": rng.standard_normal((40, 2))})
    model.save(tmp_path / "q")
    assert table(done("forecast", tmp_path / "q").stdout)[0]["time"] == str(model.forecast(1)["time"][0])


def test_report(model_file: Path) -> None:
    text = done("report", model_file).stdout
    assert fv.load(model_file).summary() in text and "order=2" in text and "Not private" in text
    assert done("report", model_file, "--privacy").stdout.startswith("Not private")
    assert json.loads(done("report", model_file, "--privacy", "--json").stdout)["private"] is False
    assert json.loads(done("report", model_file, "--json").stdout)["options"]["order"] == 2


def test_private_fit_and_its_report(panel_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    result = done(
        "fit", panel_dir, "--epsilon", 2, "--delta", 1e-5, "--calibration", "paper", "--kappa", 0.01, "--out", out
    )
    assert "Private: epsilon" in result.stdout
    text = done("report", out, "--privacy").stdout
    assert text.startswith("Privacy report") and "NOT PRIVATE" not in text and "FedVAR" not in text
    shown = json.loads(done("report", out, "--json").stdout)
    assert shown["private"] is True and shown["privacy_report"]["privacy"]["kappa"] == 0.01
    assert shown["loss"] is None


def test_a_seeded_private_fit_is_called_not_private(panel_dir: Path, tmp_path: Path) -> None:
    options = ("--epsilon", 2, "--delta", 1e-5, "--calibration", "paper", "--seed", 1)
    result = done("fit", panel_dir, *options, "--out", tmp_path / "a")
    assert "NOT PRIVATE" in result.stderr and "NOT PRIVATE" in result.stdout
    done("fit", panel_dir, *options, "--out", tmp_path / "b", "--quiet")
    np.testing.assert_array_equal(fv.load(tmp_path / "a").A0_, fv.load(tmp_path / "b").A0_)
    assert json.loads(done("report", tmp_path / "a", "--json").stdout)["private"] is False


def test_json_has_no_nan() -> None:
    assert plain({"a": [float("nan"), np.float64("inf"), np.int64(3)], 1: np.array([1.5])}) == {
        "a": [None, None, 3],
        "1": [1.5],
    }


@pytest.mark.filterwarnings("default::RuntimeWarning")  # of NumPy, on overflow
def test_explosive_forecasts_warn_and_stay_json(tmp_path: Path) -> None:
    path = np.cumprod(np.full((40, 1), 1.3), axis=0)
    fv.FedVAR(rank=1, center=False, l1_penalty=0.0).fit({"one": path}).save(tmp_path / "m")
    result = done("forecast", tmp_path / "m", "--steps", 5000, "--json")
    assert any(line.startswith("warning: ") and "'one'" in line for line in result.stderr.splitlines())
    assert all(line.startswith("warning: ") for line in result.stderr.splitlines())

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    records = json.loads(result.stdout, parse_constant=no_constant)["forecasts"]
    assert records[-1]["y1"] is None and records[0]["y1"] > 0


@pytest.mark.parametrize(("name", "order", "label"), [("great_lakes", 4, "2025-07-01"), ("macro", 1, "2024-Q1")])
def test_real_panels(data_dir: Path, tmp_path: Path, name: str, order: int, label: str) -> None:
    out = tmp_path / "m"
    done("fit", data_dir / name, "--order", order, "--rank", 3, "--out", out)
    rows = table(done("forecast", out, "--steps", 4).stdout)
    clients = list(read_panel(data_dir / name).clients)
    assert list(dict.fromkeys(row["client"] for row in rows)) == clients and len(rows) == 4 * len(clients)
    assert label in list(rows[0].values())
    assert "rank 3" in done("report", out).stdout


# -- demo ----------------------------------------------------------------------------------------------------


def test_demo_tells_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = done("demo").stdout
    assert "each client alone" in text and "removed" in text and "client_1.csv" in text
    assert not list(tmp_path.iterdir())
    assert "Go on with" in done("demo", "--keep").stdout
    assert len(list(tmp_path.iterdir())) == 1


def test_demo_in_a_folder_shows_what_federating_gains(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    lines = done("demo", "--dir", folder, "--seed", 1).stdout.splitlines()
    together, alone = (
        [float(word) for word in line.split()[-3:]]
        for start in ("   all together", "   each client alone")
        for line in lines
        if line.startswith(start)
    )
    assert all(mine < other for mine, other in zip(together, alone, strict=True))
    done("forecast", folder / "model.npz", "--steps", 8, "--level", 90)
    assert "not empty" in refused("demo", "--dir", folder)
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in refused("demo", "--dir", file)
