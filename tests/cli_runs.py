"""Runs of the command line, in this process and in one of its own."""

from __future__ import annotations

import csv
import io
import subprocess
import sys

from click.testing import CliRunner, Result

from fedvar_fast._cli_commands import cli


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="fedvar-fast")


def done(*args: object) -> Result:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result


def shown(*args: object) -> str:
    """What a run that went well printed."""
    return done(*args).stdout


def refused(*args: object) -> str:
    """The one line of an error of the user's."""
    result = run(*args)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def shell(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedvar_fast.cli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
