"""The command line as a process: exit codes, pipes, signals, a missing library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("click")

from cli_runs import shell


def test_round_trip_in_a_shell(tmp_path: Path) -> None:
    assert shell("simulate", "sim", "--dim", 4, "--rows", 40, cwd=tmp_path).returncode == 0
    fitted = shell("fit", "sim", "--out", "m", "--json", cwd=tmp_path)
    assert fitted.returncode == 0 and fitted.stderr == ""
    assert json.loads(fitted.stdout)["order"] == 1
    wrong = shell("fit", "nowhere", "--out", "n", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (1, "") and wrong.stderr.startswith("error: nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "sim"]


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_broken_pipe_is_no_traceback(model_file: Path) -> None:
    command = [sys.executable, "-m", "fedvar_fast.cli", "forecast", str(model_file), "--steps", "20000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) in (0, 1)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_interrupt_exits_130_and_leaves_nothing(panel_dir: Path, tmp_path: Path) -> None:
    code = (
        "import fedvar_fast.estimators.fedvar as m, time, sys\n"
        "m.fit_shared = lambda *a, **k: (print('in', file=sys.stderr, flush=True), time.sleep(50))\n"
        "from fedvar_fast.cli import main\n"
        f"main(['fit', {str(panel_dir)!r}, '--out', {str(tmp_path / 'm')!r}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"in\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"interrupted\n")
    assert not list(tmp_path.iterdir())


def test_without_click_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedvar_fast.cli import main

    for name in [name for name in sys.modules if name.startswith("fedvar_fast._cli_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "click", None)
    with pytest.raises(SystemExit) as stop:
        main(["fit"])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "error: the command line needs click: pip install 'fedvar_fast[cli]'\n"
