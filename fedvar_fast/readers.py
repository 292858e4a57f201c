"""Files to panels and back: folders of CSV or Parquet files, one per client, or one long file."""

from __future__ import annotations

import csv
import glob
import gzip
import importlib.util
import itertools
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import pandas as pd

from fedvar_fast._atomic import atomic_write
from fedvar_fast.exceptions import DataError, FileFormatError, OptionError
from fedvar_fast.panel import ClientSeries, Panel, find_time_column
from fedvar_fast.timeaxis import TimeAxis

__all__ = ["read_panel", "write_panel"]

_ENDINGS = (".csv", ".csv.gz", ".parquet")
_LONG_CLIENT = "unique_id"
# Names that Windows keeps for itself, and characters that some file system does not allow in a name.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_UNSAFE = re.compile(r'[\x00-\x1f<>:"/\\|?*]|^\.|[. ]$|^ ')
_LONGEST_NAME = 200
# From 3.1 pandas reads floats exactly, and warns of the option that asked for it.
_OLD_PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EXACT: dict[str, Any] = {"float_precision": "round_trip"} if _OLD_PANDAS else {}
_MISSING = ["", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "-nan", "null", "NULL", "None", "n/a"]


def read_panel(
    path: str | os.PathLike[str],
    *,
    client: str | None = None,
    time: str | None = None,
    freq: Any = None,
    missing: str = "error",
    columns: Sequence[str] | None = None,
) -> Panel:
    """Read a panel from CSV (also gzipped) or Parquet files.

    Parameters
    ----------
    path : path
        A folder or a glob pattern: one file per client, named after it, in the order of the file names;
        hidden files and other kinds of file are passed over. Or one file: one client, or a long file when
        `client` is given or it has a column "unique_id".
    client : str, optional
        The column of clients of one long file.
    time : str, optional
        The column of times; found by itself as in `Panel.from_frames`.
    freq, missing
        As in `Panel.from_frames`.
    columns : sequence of str, optional
        The variables to use, in that order; all by default.

    Returns
    -------
    Panel

    Raises
    ------
    FileFormatError
        If a file is missing, empty, ragged or unreadable; the text names it.
    DataError, DataTypeError
        As in `Panel.from_frames`.
    """
    files = _find(Path(path))
    if client is None and len(files) == 1 and Path(path).is_file() and _LONG_CLIENT in _header(files[0]):
        client = _LONG_CLIENT
    if client is not None:
        if len(files) > 1:
            raise OptionError(f"client={client!r} is for one long file, but {path} holds {len(files)} files")
        frame = _read(files[0], columns, time, client)
        label = "ds" if time is None else time
        return Panel.from_long(frame, client=client, time=label, freq=freq, missing=missing)
    frames: dict[str, pd.DataFrame] = {}
    for file in files:
        name = _stem(file)
        if name in frames:
            raise FileFormatError(f"two files for the client {name!r}: {file} and another of the same name")
        frames[name] = _read(file, columns, time)
    return Panel.from_frames(frames, time=time, freq=freq, missing=missing)


def _find(path: Path) -> list[Path]:
    """The files that a path means, in the order of their names."""
    if path.is_dir():
        found = list(path.iterdir())
    elif path.exists():
        if not path.name.lower().endswith(_ENDINGS):
            raise FileFormatError(f"{path}: not a {', '.join(_ENDINGS)} file")
        return [path]
    elif glob.has_magic(str(path)):
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    else:
        raise FileFormatError(f"{path}: there is no such file or folder")
    tables = [
        file
        for file in found
        if file.name.lower().endswith(_ENDINGS) and not file.name.startswith(".") and file.is_file()
    ]
    if not tables:
        raise FileFormatError(f"{path}: no {', '.join(_ENDINGS)} files there")
    return sorted(tables, key=lambda file: (file.name, str(file)))


def _stem(file: Path) -> str:
    """A file's name without its ending."""
    ending = next(ending for ending in sorted(_ENDINGS, key=len, reverse=True) if _ends(file, ending))
    return file.name[: -len(ending)]


def _ends(file: Path, ending: str) -> bool:
    return file.name.lower().endswith(ending)


def _open(file: Path) -> IO[str]:
    """A CSV file as text; a byte order mark is passed over, line ends are left to the csv module."""
    if _ends(file, ".gz"):
        return cast(IO[str], gzip.open(file, "rt", encoding="utf-8-sig", newline=""))
    return open(file, encoding="utf-8-sig", newline="")


def _header(file: Path) -> list[str]:
    """The names of the columns."""
    if _ends(file, ".parquet"):
        return list(map(str, _read_parquet(file).columns))
    return _scan(file, rows=False)[1]


def _read(file: Path, columns: Sequence[str] | None, time: str | None, client: str | None = None) -> pd.DataFrame:
    """A file as a frame: the variables asked for, the times and the clients."""
    frame = _read_parquet(file) if _ends(file, ".parquet") else _read_csv(file, client)
    if len(frame) == 0:
        raise FileFormatError(f"{file}: no rows, only a header")
    if columns is None:
        return frame
    lacking = [name for name in columns if name not in frame.columns]
    if lacking:
        known = ", ".join(map(repr, frame.columns))
        raise DataError(f"{file}: no column {lacking[0]!r}; the columns are {known}")
    rest = frame[[name for name in frame.columns if name not in columns]]
    kept = [name for name in (client, time) if name in rest.columns]
    if time is None and (found := find_time_column(rest.drop(columns=kept))) is not None:
        kept.append(found)
    return frame[[*kept, *columns]]


def _read_parquet(file: Path) -> pd.DataFrame:
    if importlib.util.find_spec("pyarrow") is None:
        raise FileFormatError(f"{file}: to read Parquet files, pip install pyarrow")
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:  # pyarrow's errors are among these
        raise FileFormatError(f"{file}: not a readable Parquet file: {error}") from error


def _read_csv(file: Path, text: str | None) -> pd.DataFrame:
    """A CSV file as a frame, every number to the last bit; the column `text` is left as text."""
    delimiter, header = _scan(file)
    # A client may be called "NA": in its column nothing stands for a missing value but nothing.
    missing = {name: [""] if name == text else _MISSING for name in header}
    try:
        return pd.read_csv(
            file,
            sep=delimiter,
            header=0,
            names=header,
            index_col=False,
            encoding="utf-8-sig",
            **_EXACT,
            low_memory=False,
            keep_default_na=False,
            na_values=missing,
            dtype=None if text is None else {text: str},
        )
    except ValueError as error:  # pandas' parser errors are among these
        raise FileFormatError(f"{file}: not a readable CSV file: {error}") from error


def _lines(stream: IO[str], file: Path) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        if "\0" in line:
            raise FileFormatError(f"{file}: line {number} holds binary data, this is not a CSV file")
        yield line


def _scan(file: Path, *, rows: bool = True) -> tuple[str, list[str]]:
    """The delimiter and header of a CSV file, whose lines must all have as many fields as the header.

    pandas would fill short lines with missing values, and rename columns of the same name.
    """
    try:
        with _open(file) as stream:
            lines = _lines(stream, file)
            first = next(lines, "")
            unquoted = re.sub(r'"[^"]*"', "", first)
            delimiter = max(",;\t", key=unquoted.count)
            reader = csv.reader(itertools.chain([first], lines), delimiter=delimiter)
            header = next(reader, [])
            if not any(name.strip() for name in header):
                raise FileFormatError(f"{file}: the file is empty, or begins with an empty line")
            if rows:
                _check_rows(reader, len(header), file)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{file}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise FileFormatError(f"{file}: cannot be read: {error}") from error
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise FileFormatError(f"{file}: column name(s) given twice: {', '.join(map(repr, twice))}")
    return delimiter, header


def _check_rows(reader: Any, width: int, file: Path) -> None:
    """Every line has `width` fields; empty lines are passed over, except where one may be a missing value."""
    empty = 0
    for fields in reader:
        if not fields:
            empty = empty or reader.line_num
            continue
        if len(fields) != width:
            raise FileFormatError(f"{file}: line {reader.line_num} has {len(fields)} field(s), the header has {width}")
        if empty and width == 1:
            raise FileFormatError(f"{file}: line {empty} is empty")


def write_panel(panel: Panel, folder: str | os.PathLike[str], *, overwrite: bool = False) -> list[Path]:
    """Write a panel as one CSV file per client, which `read_panel` reads to the same values, bit for bit.

    All files are written to the side first and then renamed: a failure while writing leaves the folder as it
    was. (Clients come back in the order of their names; times with several offsets from UTC come back as UTC;
    a time column of integers comes back as such if it has a usual name, such as "year", or with ``time=``.)

    Parameters
    ----------
    panel : Panel
    folder : path
        Made if it is not there.
    overwrite : bool
        Replace files of the same names; files of other names are never touched.

    Returns
    -------
    list of Path
        The files, in the order of the clients.

    Raises
    ------
    OptionError
        If files are there already and `overwrite` is False.
    DataError
        If the name of a client cannot be a file name.
    """
    target = Path(folder)
    _check_names(panel.clients)
    paths = [target / f"{name}.csv" for name in panel.clients]
    there = [path.name for path in paths if path.exists()]
    if there and not overwrite:
        raise OptionError(f"{target} holds {', '.join(there[:3])} already; pass overwrite=True to replace files")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=target) as aside:
        for path, series in zip(paths, map(panel.__getitem__, panel.clients), strict=True):
            _write_csv(Path(aside) / path.name, panel, series)
        for path in paths:
            os.replace(Path(aside) / path.name, path)
    return paths


def _write_csv(path: Path, panel: Panel, series: ClientSeries) -> None:
    # The csv module writes floats by repr, the shortest text that reads back as the same number.
    with atomic_write(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if series.time.has_times:
            writer.writerow([panel.time_label, *panel.columns])
            rows = zip(_time_texts(series.time), series.values, strict=True)
            writer.writerows([label, *row.tolist()] for label, row in rows)
        else:
            writer.writerow(panel.columns)
            writer.writerows(row.tolist() for row in series.values)


def _time_texts(time: TimeAxis) -> list[str]:
    """Times as text that is read again as times."""
    index = time.index
    if isinstance(index, pd.PeriodIndex) and index.freqstr not in ("M", "Q-DEC"):
        time = TimeAxis(index.to_timestamp(), None)
    return [time.label(row) for row in range(len(time))]


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that are no file names on some system, or the same file on one that ignores case."""
    for name in names:
        if _UNSAFE.search(name) or _RESERVED.fullmatch(name) or len(name.encode()) > _LONGEST_NAME:
            raise DataError(f"the client name {name!r} cannot be the name of a file; rename the client")
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise DataError(f"the clients {other!r} and {name!r} would be the same file on some systems")
