"""What the commands share: errors and warnings as single lines, JSON, CSV, kinds of option."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click
import numpy as np

from fedvar_fast import exceptions
from fedvar_fast._atomic import atomic_write
from fedvar_fast.exceptions import BudgetError, DataError, DataTypeError, ModelFileError, OptionError, OptionTypeError

__all__ = [
    "Commands",
    "GivenPath",
    "NumberOr",
    "csv_text",
    "echo_json",
    "show_warning",
    "stderr_is_terminal",
    "target_file",
    "write_csv",
]

_USER_ERRORS = (
    BudgetError,
    DataError,
    DataTypeError,
    ModelFileError,
    OptionError,
    OptionTypeError,
    OSError,
    MemoryError,
)
_PACKAGE_WARNINGS = tuple(kind for name in exceptions.__all__ if issubclass(kind := getattr(exceptions, name), Warning))
_DATA_ENDINGS = (".csv", ".csv.gz", ".parquet")
#: Options whose flag is not called like the Python option.
_FLAGS = {
    "n_rounds": "rounds",
    "n_clients": "clients",
    "n_rows": "rows",
    "nonzeros_per_row": "nonzeros",
    "n_jobs": "jobs",
    "n_origins": "origins",
    "random_state": "seed",
}
_SAME_NAME = (
    "order", "rank", "dim", "stability", "l1_penalty", "shared_solver", "ridge", "step", "local_iter",
    "local_tol", "clip", "epsilon", "delta", "kappa", "missing", "freq", "time", "client", "overwrite", "steps",
    "level", "init", "horizon", "window", "window_length", "retune_every", "units", "baseline", "max_rank",
    "nuclear_penalty", "precondition", "bounds", "calibration", "sensitive", "unit", "ledger",
)  # fmt: skip
_OPTION = re.compile(rf"(?<![\w'\"./-])({'|'.join((*_FLAGS, *_SAME_NAME))})(=| must\b)")


class Failure(click.ClickException):
    """An error that the user can mend: one line, exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the line to standard error."""
        click.echo(f"error: {_one_line(self.message)}", err=True)


class Commands(click.Group):
    """A group whose commands turn the package's errors and warnings into single lines on standard error."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except BrokenPipeError:  # click ends quietly on this one
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except _USER_ERRORS as error:
            raise Failure(_message(error)) from error


class GivenPath(click.Path):
    """A path that is not empty: an empty one, of a shell variable not set, would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as it is."""
        if not str(value).strip():
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class NumberOr(click.ParamType):
    """A number, or one of a few words.

    Parameters
    ----------
    words : str
        Separated by "|".
    number : type
        `int` or `float`.
    """

    def __init__(self, words: str, number: type[int] | type[float] = float) -> None:
        self.words, self.number = words.split("|"), number
        self.name = f"{words}|{'N' if number is int else 'X'}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word as it is, or the number."""
        if value in self.words or isinstance(value, self.number):
            return value
        try:
            return self.number(value)
        except ValueError:
            kind = "a whole number" if self.number is int else "a number"
            self.fail(f"{value!r} is neither {' nor '.join(map(repr, self.words))} nor {kind}.", param, ctx)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show warnings as lines on standard error, the package's always; everything is as before afterwards."""
    with warnings.catch_warnings():
        for kind in _PACKAGE_WARNINGS:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda message, *_args, **_kwargs: show_warning(str(message))
        yield


def show_warning(text: str) -> None:
    """A warning as one line on standard error."""
    click.echo(f"warning: {_one_line(_in_flags(text))}", err=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _message(error: BaseException) -> str:
    """What an error says, in the words of the command line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    return _in_flags(str(error))


def _in_flags(text: str) -> str:
    """Python options of a message as flags: ``n_rounds=0`` becomes ``--rounds=0``."""

    def flag(found: re.Match[str]) -> str:
        name = _FLAGS.get(found[1], found[1])
        return f"--{name.replace('_', '-')}{found[2]}"

    text = re.sub(r"Privacy\((\w+=[^()]*)\)", r"\1", text)
    text = re.sub(r"\b(center|scale)=False", r"--no-\1", text)
    flags = _OPTION.sub(flag, text).replace("--overwrite=True", "--overwrite")
    return re.sub(r'(--[\w-]+)="(\w+)"', r"\1 \2", flags)


def plain(value: Any) -> Any:
    """A value as JSON has it: NumPy's kinds become Python's, what is not finite becomes null, times text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def echo_json(value: Any) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(plain(value), allow_nan=False, indent=2))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV; floats in the shortest form that reads back as the same number."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue()


def write_csv(path: str, text: str) -> None:
    """Write a CSV text to a file, whole or not at all."""
    with atomic_write(path, "w", encoding="utf-8", newline="") as stream:
        stream.write(text)


def target_file(path: str, *, model: bool = False, reads: str | None = None) -> str:
    """The path of a file that is to be written, checked before any work is done.

    Parameters
    ----------
    path : str
    model : bool
        It will be a model: names of data files are refused, so that no data are lost to a slip.
    reads : str, optional
        The file that is read, which must not be replaced.

    Returns
    -------
    str

    Raises
    ------
    OptionError
        If it is a folder, in a folder that is not there, or a file of another kind.
    """
    target = Path(path)
    if target.is_dir():
        raise OptionError(f"--out {path}: this is a folder, give the name of a file")
    if not target.parent.is_dir():
        raise OptionError(f"--out {path}: there is no folder {target.parent}")
    if model and target.name.lower().endswith(_DATA_ENDINGS):
        raise OptionError(f"--out {path}: a model must not be named like a data file, use {target.stem}.npz")
    if reads is not None and os.path.realpath(path) == os.path.realpath(reads):
        raise OptionError(f"--out {path}: this is the model itself, give another file")
    return path


def stderr_is_terminal() -> bool:
    """Whether a progress bar would be seen."""
    return bool(sys.stderr is not None and sys.stderr.isatty())
