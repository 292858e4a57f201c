"""Frames and arrays of many kinds as plain columns of numbers and times, before they are a panel; and back."""

from __future__ import annotations

import datetime as dt
import decimal
import numbers
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from narwhals.exceptions import DuplicateError

from fedvar_fast import timeaxis
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.timeaxis import TimeAxis

_TIME_NAMES = frozenset(
    ("date", "time", "ds", "time_period", "datetime", "timestamp", "month", "quarter", "year", "period")
)
_FRAME_KINDS = ("pandas", "polars", "pyarrow")


@dataclass(frozen=True)
class _Table:
    """A frame of any kind as columns by name; a pandas index is kept, for it may hold the times."""

    kind: str
    columns: dict[str, Any]
    n_rows: int
    index: pd.Index | None


@dataclass(frozen=True, eq=False)
class RawClient:
    """One client as the user gave it; `rows` are the numbers, from 1, of its rows in the user's data."""

    name: str
    columns: list[str]
    values: np.ndarray
    rows: np.ndarray
    time: TimeAxis

    def place(self, row: int) -> str:
        """A row for messages."""
        return f"row {self.rows[row]}" + (f" ({self.time.label(row)})" if self.time.has_times else "")


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names for a message, not too many."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def free_name(name: str, taken: Sequence[str]) -> str:
    """The name, with underscores until no variable has it."""
    while name in taken:
        name += "_"
    return name


def readonly(values: np.ndarray) -> np.ndarray:
    """A read-only array in C order; a view where the array is in C order already."""
    view = np.ascontiguousarray(values).view() if not values.flags.c_contiguous else values.view()
    view.flags.writeable = False
    return view


def name_each(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Clients with their names as text."""
    if not isinstance(data, Mapping):
        raise DataTypeError(f"a mapping of client names to data is needed, not {type(data).__name__}")
    named = [(str(name), part) for name, part in data.items()]
    if twice := repeated(name for name, _ in named):
        raise DataError(f"client name(s) given twice: {listed(twice)}")
    return named


def wrap_frame(data: Any, who: str = "the frame") -> Any:
    """A frame or series of any kind as one of narwhals; anything else as it is."""
    try:
        wrapped = nw.from_native(data, pass_through=True, allow_series=True)
        if isinstance(wrapped, nw.DataFrame):
            wrapped.collect_schema()  # some kinds look at the names only now
    except DuplicateError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{who}: column names are given twice: {reason}") from error
    return wrapped


def is_frame(data: Any) -> bool:
    return isinstance(wrap_frame(data), nw.DataFrame | nw.LazyFrame)


def read_table(frame: Any, who: str) -> _Table:
    """Look into a frame; nothing is converted yet."""
    wrapped = wrap_frame(frame, who)
    if isinstance(wrapped, nw.LazyFrame):
        raise DataTypeError(f"{who}: a lazy frame has no rows yet; call .collect() first")
    if not isinstance(wrapped, nw.DataFrame):
        raise DataTypeError(f"{who}: a pandas, polars or pyarrow frame is needed, not {type(frame).__name__}")
    if len(wrapped) == 0:
        raise DataError(f"{who} has no rows")
    names = [str(name) for name in wrapped.columns]
    if twice := repeated(names):
        raise DataError(f"{who}: column name(s) given twice: {listed(twice)}")
    kind = next((kind for kind in _FRAME_KINDS if kind == str(wrapped.implementation)), "pandas")
    index = frame.index if isinstance(frame, pd.DataFrame) else None
    return _Table(kind, dict(zip(names, wrapped.iter_columns(), strict=True)), len(wrapped), index)


def _time_values(column: Any) -> pd.Index:
    """A column of a frame as a pandas index, with its time zone."""
    native = column.to_native()
    if isinstance(native, pd.Series):
        return pd.Index(native)
    if isinstance(column.dtype, nw.Datetime):
        # NumPy has no time zones: what it is handed is UTC.
        index, zone = pd.DatetimeIndex(column.to_numpy()), column.dtype.time_zone
        return index if zone is None else index.tz_localize("UTC").tz_convert(zone)
    return pd.Index(np.array([*column.to_list(), None], dtype=object)[:-1])


def _pop_time(table: _Table, time: str | None) -> tuple[str, pd.Index | None]:
    """Find the times, and take their column out of the table: its name, and what is in it."""
    columns, index = table.columns, table.index
    if time is not None and time not in columns and (index is None or index.name != time):
        raise DataError(f"no time column {time!r}; the columns are {listed(columns)}")
    if isinstance(index, pd.MultiIndex):
        raise DataTypeError("the frame has an index of several levels; call .reset_index() first")
    if time is None:
        if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
            return str(index.name or "time"), index
        time = _guess_time(columns)
    if time in columns:
        return time, _time_values(columns.pop(time))
    if index is not None and (index.name is not None or _is_time_text(index)):
        return str(index.name or "time"), index
    return "time", None


def find_time_column(frame: Any) -> str | None:
    """The name of the column that holds the times of a frame, if one does."""
    return _guess_time(read_table(frame, "the frame").columns)


def _guess_time(columns: Mapping[str, Any]) -> str | None:
    """The column that holds the times, if one does."""
    dated = [name for name, column in columns.items() if column.dtype.is_temporal() or _holds_dates(column)]
    named = [name for name in columns if name.lower() in _TIME_NAMES]
    if dated or named:
        return (dated or named)[0]
    texts = (name for name, column in columns.items() if column.dtype in (nw.String, nw.Object))
    return next((name for name in texts if _is_time_text(_time_values(columns[name]))), None)


def _holds_dates(column: Any) -> bool:
    """Whether a pandas column that narwhals has no type for holds periods, or date objects."""
    native = column.to_native()
    if not isinstance(native, pd.Series):
        return False
    objects = native.dtype == object and all(isinstance(value, dt.date | pd.Period) for value in native)
    return objects or isinstance(native.dtype, pd.PeriodDtype)


def _is_time_text(values: pd.Index) -> bool:
    """Whether all values are text that means times (digits alone may mean anything)."""
    texts = list(values) if values.dtype == object or isinstance(values.dtype, pd.StringDtype) else []
    if not all(isinstance(text, str) for text in texts):
        return False
    parsed = timeaxis.parse_text(texts)
    return parsed is not None and parsed[1] != timeaxis.DIGITS


def raw_clients(table: _Table, owners: list[str], time: str | None) -> tuple[list[RawClient], str]:
    """The clients of a table, whose rows belong to `owners`; and the name of the time column."""
    label, times = _pop_time(table, time)
    who = f"client {owners[0]!r}" if len(set(owners)) == 1 else "the frame"
    axis = None if times is None else TimeAxis(*_parsed(times, f"{who}, column {label!r}"))
    columns = list(table.columns)
    if not columns:
        raise DataError(f"{who}: no numeric columns besides the times")
    if unnamed := [j + 1 for j, name in enumerate(columns) if not name.strip()]:
        raise DataError(f"{who}: column {unnamed[0]} of the variables has no name (an index that was written along?)")

    def place(row: int, column: str) -> str:
        when = "" if axis is None else f" ({axis.label(row)})"
        return f"client {owners[row]!r}, column {column!r}, row {row + 1}{when}"

    values = np.empty((table.n_rows, len(columns)))
    for j, (name, column) in enumerate(table.columns.items()):
        values[:, j] = _floats(column.to_numpy(), partial(place, column=name))
    codes, names = pd.factorize(np.array(owners, dtype=object))
    if len(names) < 2:
        axis = TimeAxis.counted(table.n_rows) if axis is None else axis
        return [RawClient(owner, columns, values, np.arange(1, len(values) + 1), axis) for owner in names], label
    raws = []
    ends = np.cumsum(np.bincount(codes))[:-1]
    for name, rows in zip(names, np.split(np.argsort(codes, kind="stable"), ends), strict=True):
        own = TimeAxis.counted(len(rows)) if axis is None else replace(axis, index=axis.index[rows])
        raws.append(RawClient(name, columns, values[rows], rows + 1, own))
    return raws, label


def _parsed(times: pd.Index, where: str) -> tuple[pd.Index, None, str]:
    index, labels = timeaxis.parse_times(times, where)
    return index, None, labels


def _floats(column: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """A column as real numbers; None is NaN."""
    if column.dtype.kind in "fiub":
        return column
    if column.dtype.kind not in "OUST" or len(column) == 0:
        raise DataTypeError(f"{where(0)}: values of dtype {column.dtype} are not real numbers")
    objects = column.tolist()
    texts = [(row, value) for row, value in enumerate(objects) if isinstance(value, str | bytes)]
    if texts:
        row, text = next((pair for pair in texts if not _is_number(pair[1])), texts[0])
        hint = " (numbers have a decimal point and no thousands separators)" if re.search(r"\d", str(text)) else ""
        raise DataTypeError(f"{where(row)}: {text!r} is text, not a number{hint}")
    wrong = next((row for row, value in enumerate(objects) if not _is_real(value)), None)
    if wrong is not None:
        raise DataTypeError(f"{where(wrong)}: {objects[wrong]!r} is not a real number")
    return np.array([np.nan if pd.isna(value) else float(value) for value in objects], dtype=np.float64)


def _is_real(value: object) -> bool:
    return value is None or value is pd.NA or isinstance(value, numbers.Real | decimal.Decimal | np.bool_)


def _is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_rows(given: Any, who: str) -> np.ndarray:
    """An array as (T, d) float64 in C order; not copied if it is that already, and a memory map stays one."""
    if isinstance(given, np.ma.MaskedArray):
        given = np.ma.filled(given.astype(np.float64), np.nan)
    try:
        array = given if isinstance(given, np.memmap) else np.asarray(given)
    except ValueError as error:
        raise DataTypeError(f"{who}: rows of different lengths are no array: {error}") from error
    if array.ndim == 1:
        array = array[:, np.newaxis]
    if array.ndim != 2:
        raise DataError(f"{who}: an array (rows, variables) is needed, not one of shape {array.shape}")
    if array.dtype.kind not in "fiub":

        def place(row: int, column: int) -> str:
            return f"{who}, column {column + 1}, row {row + 1}"

        columns = [_floats(array[:, j], partial(place, column=j)) for j in range(array.shape[1])]
        array = np.stack(columns, axis=1) if columns else np.empty(array.shape)
    return np.require(array, np.float64, ["C_CONTIGUOUS", "ALIGNED"])


def build_frame(data: Mapping[str, Any], kind: str) -> Any:
    """A frame of the kind "pandas", "polars" or "pyarrow" from columns by name.

    Lists, NumPy arrays and pandas indexes are understood; time zones are kept, and periods, which only pandas
    has, become text elsewhere.
    """
    if kind not in _FRAME_KINDS:
        raise OptionError(f"the kind of frame must be one of {listed(_FRAME_KINDS)}, not {kind!r}")
    if kind == "pandas":
        return pd.DataFrame(dict(data))
    zones: dict[str, str] = {}
    plain = {}
    for name, given in data.items():
        column = pd.Index(given) if _holds(given, pd.Timestamp) else given
        if isinstance(column, pd.DatetimeIndex) and column.tz is not None:
            zones[name] = str(column.tz)
            column = column.tz_convert("UTC").tz_localize(None)
        plain[name] = _plain(column)
    frame = nw.from_dict(plain, backend="polars" if kind == "polars" else "pyarrow")
    zoned = [nw.col(name).dt.replace_time_zone("UTC").dt.convert_time_zone(zone) for name, zone in zones.items()]
    return frame.with_columns(zoned).to_native() if zoned else frame.to_native()


def _holds(column: Any, kind: type) -> bool:
    return not isinstance(column, pd.Index) and len(column) > 0 and isinstance(column[0], kind)


def _plain(column: Any) -> Any:
    """A column that polars and pyarrow understand."""
    if _holds(column, pd.Period) or isinstance(column, pd.PeriodIndex):
        return [str(period) for period in column]
    array = column.to_numpy() if isinstance(column, pd.Index) else column
    if not isinstance(array, np.ndarray):
        return array
    if array.dtype.kind == "M" and array.dtype == np.dtype("M8[s]"):
        return array.astype("M8[ms]")  # polars has no whole seconds
    return array.tolist() if array.dtype.kind in "OU" else np.ascontiguousarray(array)
