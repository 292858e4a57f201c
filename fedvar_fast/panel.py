"""Clients' series with one set of columns: frames and arrays of many kinds become a `Panel`, checked once.

Nothing here changes the user's data, and values are copied only where they are not float64 in rows already.
"""

from __future__ import annotations

import decimal
import numbers
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

__all__ = ["ClientSeries", "Panel", "as_panel", "build_frame", "find_time_column"]

_TIME_NAMES = frozenset(
    ("date", "time", "ds", "time_period", "datetime", "timestamp", "month", "quarter", "year", "period")
)
_FRAME_KINDS = ("pandas", "polars", "pyarrow")
_BLOCK_NUMBERS = 2**17
# With missing="drop" a gap becomes rows of NaN; times this irregular are a mistake, not a series with gaps.
_MAX_FILL = 50


@dataclass(frozen=True, eq=False)
class ClientSeries:
    """The rows of one client.

    Parameters
    ----------
    name : str
    values : (T, d) ndarray
        float64, C-contiguous, read-only. NaN only where the panel was made with ``missing="drop"``.
    time : TimeAxis
    """

    name: str
    values: np.ndarray
    time: TimeAxis

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> ClientSeries:
        return replace(self, values=self.values[rows], time=self.time[rows])


class Panel:
    """One multivariate series per client: the same columns everywhere, own length, own times.

    Made by `from_frames`, `from_long`, `from_arrays` or `as_panel`; the constructor takes parts that are
    right.

    Parameters
    ----------
    series : iterable of ClientSeries
    columns : sequence of str
    client_label, time_label : str
        What the columns of client and time are called in frames.
    frame_kind : {"pandas", "polars", "pyarrow"}
        The kind of frame that the user gave, and gets.

    Attributes
    ----------
    clients : tuple of str
        In first-seen order.
    columns : tuple of str
        In the order of the first client.
    n_rows : dict
        Number of rows by client.
    """

    def __init__(
        self,
        series: Iterable[ClientSeries],
        columns: Sequence[str],
        *,
        client_label: str = "client",
        time_label: str = "time",
        frame_kind: str = "pandas",
    ) -> None:
        self._series = {one.name: one for one in series}
        self.columns = tuple(columns)
        self.client_label = _free_name(client_label, self.columns)
        self.time_label = _free_name(time_label, (*self.columns, self.client_label))
        self.frame_kind = frame_kind

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients, in first-seen order."""
        return tuple(self._series)

    @property
    def n_rows(self) -> dict[str, int]:
        """Number of rows by client."""
        return {name: len(series) for name, series in self._series.items()}

    def __getitem__(self, name: str) -> ClientSeries:
        if name not in self._series:
            raise DataError(f"no client {name!r}; the clients are {_listed(self.clients)}")
        return self._series[name]

    def __len__(self) -> int:
        return len(self._series)

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __contains__(self, name: object) -> bool:
        return name in self._series

    def items(self) -> Iterable[tuple[str, ClientSeries]]:
        """Pairs of name and series."""
        return self._series.items()

    def __repr__(self) -> str:
        rows = self.n_rows.values()
        span = f"{min(rows)}" if len(set(rows)) == 1 else f"{min(rows, default=0)} to {max(rows, default=0)}"
        shape = f"{len(self)} client(s), {len(self.columns)} column(s), {span} rows"
        return f"<Panel: {shape}: {_listed(self.clients, 4)}>"

    @classmethod
    def from_frames(
        cls, frames: Mapping[str, Any], *, time: str | None = None, freq: Any = None, missing: str = "error"
    ) -> Panel:
        """A panel from one frame per client.

        Parameters
        ----------
        frames : mapping of client name to frame
            Of pandas, polars or pyarrow. One column per variable, and a column of times (with pandas it may
            be the index); without any, the rows are taken in order. Columns are matched by name.
        time : str, optional
            The column of times. By default the first one of dates, datetimes or periods, else one with a name
            such as "date" or "year", else the first column of text that holds dates.
        freq : str, offset or int, optional
            The frequency, such as "MS", where it is not to be inferred.
        missing : {"error", "drop"}
            Missing values and gaps are an error, or stay as NaN, so that only real lag pairs are used.

        Returns
        -------
        Panel

        Raises
        ------
        DataError, DataTypeError
            If the data cannot be used; the text names client, column and row.
        """
        raws, label, kind = [], "", ""
        for name, frame in _named(frames):
            table = _table(frame, f"client {name!r}")
            some, found = _raw_clients(table, [name] * table.n_rows, time)
            raws += some
            # The first client gives the names and the kind of frame that results are written with.
            label, kind = label or found, kind or table.kind
        return cls._assemble(raws, ("client", label, kind), freq, missing)

    @classmethod
    def from_long(
        cls,
        frame: Any,
        *,
        client: str = "unique_id",
        time: str = "ds",
        freq: Any = None,
        missing: str = "error",
    ) -> Panel:
        """A panel from one frame with a row per client and time.

        Parameters
        ----------
        frame : pandas, polars or pyarrow frame
        client, time : str
            The columns of client and time; every other column is a variable. Without a column "ds" the column
            of times is looked for as in `from_frames`.
        freq, missing
            As in `from_frames`.

        Returns
        -------
        Panel

        Raises
        ------
        DataError, DataTypeError
            As in `from_frames`.
        """
        if isinstance(frame, pd.DataFrame) and {client, time} & set(map(str, frame.index.names)):
            frame = frame.reset_index()
        table = _table(frame, "the frame")
        if client not in table.columns:
            raise DataError(f"no client column {client!r}; the columns are {_listed(table.columns)}")
        column = table.columns.pop(client)
        unnamed = np.flatnonzero(column.is_null().to_numpy())
        if len(unnamed):
            raise DataError(f"column {client!r}: no client in row {unnamed[0] + 1}")
        owners = [str(value) for value in column.to_list()]
        raws, label = _raw_clients(
            table, owners, None if time == "ds" and time not in table.columns else time
        )
        return cls._assemble(raws, (client, label, table.kind), freq, missing)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], *, columns: Sequence[str] | None = None, missing: str = "error"
    ) -> Panel:
        """A panel from one array per client, without times.

        Parameters
        ----------
        arrays : mapping of client name to (T, d) array
            A float64 array in C order is not copied. One dimension means one variable.
        columns : sequence of str, optional
            Names of the variables; "y1", "y2", ... by default.
        missing : {"error", "drop"}
            As in `from_frames`.

        Returns
        -------
        Panel

        Raises
        ------
        DataError, DataTypeError
            As in `from_frames`.
        """
        raws = []
        for name, given in _named(arrays):
            values = _array(given, f"client {name!r}")
            names = (
                [f"y{j + 1}" for j in range(values.shape[1])] if columns is None else list(map(str, columns))
            )
            if len(names) != values.shape[1]:
                raise DataError(
                    f"client {name!r} has {values.shape[1]} column(s), but columns= names {len(names)}"
                )
            raws.append(
                _Raw(name, names, values, np.arange(1, len(values) + 1), TimeAxis.counted(len(values)))
            )
        return cls._assemble(raws, ("client", "time", "pandas"), None, missing)

    @classmethod
    def _assemble(cls, raws: list[_Raw], labels: tuple[str, str, str], freq: Any, missing: str) -> Panel:
        """Check the clients against each other, and put their rows in order."""
        if missing not in ("error", "drop"):
            raise OptionError(f"missing must be 'error' or 'drop', not {missing!r}")
        if not raws:
            raise DataError("no clients: there are no data")
        matched = [_matched(raw, raws[0]) for raw in raws]
        for raw in matched:
            _check_values(raw, missing)
        sorted_raws = [_sorted(raw) for raw in matched]
        step = _common_step(sorted_raws, freq)
        series = [_regular(raw, step, missing, raws[0].time.labels) for raw in sorted_raws]
        client_label, time_label, kind = labels
        return cls(series, raws[0].columns, client_label=client_label, time_label=time_label, frame_kind=kind)

    def _with(self, series: Iterable[ClientSeries], columns: Sequence[str] | None = None) -> Panel:
        """The same kind of panel with other rows."""
        labels = {"client_label": self.client_label, "time_label": self.time_label}
        return Panel(
            series, self.columns if columns is None else columns, frame_kind=self.frame_kind, **labels
        )

    def take(self, rows: Mapping[str, slice]) -> Panel:
        """The clients in `rows`, in this panel's order, with those rows each (views)."""
        for name in rows:
            self[name]
        return self._with(series[rows[name]] for name, series in self.items() if name in rows)

    def slice(self, start: int | None = None, stop: int | None = None) -> Panel:
        """The rows ``[start:stop]`` of every client (views)."""
        return self._with(series[slice(start, stop)] for series in self._series.values())

    def head(self, n_rows: int) -> Panel:
        """The first `n_rows` rows of every client (views)."""
        return self.slice(0, max(n_rows, 0))

    def tail(self, n_rows: int) -> Panel:
        """The last `n_rows` rows of every client (views)."""
        return self._with(series[max(len(series) - n_rows, 0) :] for series in self._series.values())

    def reorder(self, columns: Sequence[str] | None = None, clients: Sequence[str] | None = None) -> Panel:
        """The columns and clients named, in that order; fewer than all are allowed."""
        wanted = list(self.columns if columns is None else columns)
        names = list(self.clients if clients is None else clients)
        for what, chosen, known in (("column", wanted, self.columns), ("client", names, self.clients)):
            if not chosen or _repeated(chosen) or not set(chosen) <= set(known):
                raise DataError(
                    f"cannot choose {what}s {_listed(chosen)}: choose some of {_listed(known)}, each once"
                )
        chosen_series = [self[name] for name in names]
        if wanted != list(self.columns):
            at = [self.columns.index(column) for column in wanted]
            chosen_series = [replace(one, values=_readonly(one.values[:, at])) for one in chosen_series]
        return self._with(chosen_series, wanted)

    def to_frames(self) -> dict[str, Any]:
        """A frame per client, of the kind that the user gave; with the times, if there were any."""
        return {name: build_frame(self._columns_of(series), self.frame_kind) for name, series in self.items()}

    def _columns_of(self, series: ClientSeries) -> dict[str, Any]:
        times = {self.time_label: series.time.to_labels()} if series.time.has_times else {}
        return times | dict(zip(self.columns, series.values.T, strict=True))

    def to_long(self) -> Any:
        """One frame with the columns client, time and the variables, of the kind that the user gave."""
        every = list(self._series.values())
        owners = [one.name for one in every for _ in range(len(one))]
        parts = [one.time.to_labels() for one in every]
        # All clients write times alike, so these are all lists or all arrays.
        lists = isinstance(parts[0], list)
        times = [label for part in parts for label in part] if lists else np.concatenate(parts)
        values = np.concatenate([one.values for one in every])
        data = {self.client_label: owners, self.time_label: times}
        return build_frame(data | dict(zip(self.columns, values.T, strict=True)), self.frame_kind)


@dataclass(frozen=True)
class _Table:
    """A frame of any kind as columns by name; a pandas index is kept, for it may hold the times."""

    kind: str
    columns: dict[str, Any]
    n_rows: int
    index: pd.Index | None


@dataclass(frozen=True, eq=False)
class _Raw:
    """One client as the user gave it; `rows` are the numbers, from 1, of its rows in the user's data."""

    name: str
    columns: list[str]
    values: np.ndarray
    rows: np.ndarray
    time: TimeAxis

    def place(self, row: int) -> str:
        """A row for messages."""
        return f"row {self.rows[row]}" + (f" ({self.time.label(row)})" if self.time.has_times else "")


def _listed(names: Iterable[object], most: int = 10) -> str:
    """Names for a message, not too many."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _free_name(name: str, taken: Sequence[str]) -> str:
    """The name, with underscores until no variable has it."""
    while name in taken:
        name += "_"
    return name


def _readonly(values: np.ndarray) -> np.ndarray:
    """A read-only array in C order; a view where the array is in C order already."""
    view = np.ascontiguousarray(values).view() if not values.flags.c_contiguous else values.view()
    view.flags.writeable = False
    return view


def _named(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Clients with their names as text."""
    if not isinstance(data, Mapping):
        raise DataTypeError(f"a mapping of client names to data is needed, not {type(data).__name__}")
    named = [(str(name), part) for name, part in data.items()]
    if twice := _repeated(name for name, _ in named):
        raise DataError(f"client name(s) given twice: {_listed(twice)}")
    return named


def _is_frame(data: Any) -> bool:
    return isinstance(nw.from_native(data, pass_through=True), nw.DataFrame | nw.LazyFrame)


def _table(frame: Any, who: str) -> _Table:
    """Look into a frame; nothing is converted yet."""
    wrapped = nw.from_native(frame, pass_through=True)
    if isinstance(wrapped, nw.LazyFrame):
        raise DataTypeError(f"{who}: a lazy frame has no rows yet; call .collect() first")
    if not isinstance(wrapped, nw.DataFrame):
        raise DataTypeError(f"{who}: a pandas, polars or pyarrow frame is needed, not {type(frame).__name__}")
    try:
        names = [str(name) for name in wrapped.columns]
    except DuplicateError as error:
        raise DataError(f"{who}: column names occur twice: {error}") from error
    if twice := _repeated(names):
        raise DataError(f"{who}: column name(s) given twice: {_listed(twice)}")
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
        raise DataError(f"no time column {time!r}; the columns are {_listed(columns)}")
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
    return _guess_time(_table(frame, "the frame").columns)


def _guess_time(columns: Mapping[str, Any]) -> str | None:
    """The column that holds the times, if one does."""
    dated = [name for name, column in columns.items() if column.dtype.is_temporal() or _is_period(column)]
    named = [name for name in columns if name.lower() in _TIME_NAMES]
    if dated or named:
        return (dated or named)[0]
    texts = (name for name, column in columns.items() if column.dtype in (nw.String, nw.Object))
    return next((name for name in texts if _is_time_text(_time_values(columns[name]))), None)


def _is_period(column: Any) -> bool:
    return isinstance(getattr(column.to_native(), "dtype", None), pd.PeriodDtype)


def _is_time_text(values: pd.Index) -> bool:
    """Whether all values are text that means times (digits alone may mean anything)."""
    texts = list(values) if values.dtype == object or isinstance(values.dtype, pd.StringDtype) else []
    if not all(isinstance(text, str) for text in texts):
        return False
    parsed = timeaxis.parse_text(texts)
    return parsed is not None and parsed[1] != timeaxis.DIGITS


def _raw_clients(table: _Table, owners: list[str], time: str | None) -> tuple[list[_Raw], str]:
    """The clients of a table, whose rows belong to `owners`; and the name of the time column."""
    label, times = _pop_time(table, time)
    who = f"client {owners[0]!r}" if len(set(owners)) == 1 else "the frame"
    axis = None if times is None else TimeAxis(*_parsed(times, f"{who}, column {label!r}"))
    columns = list(table.columns)
    if not columns:
        raise DataError(f"{who}: no numeric columns besides the times")
    if unnamed := [j + 1 for j, name in enumerate(columns) if not name.strip()]:
        raise DataError(
            f"{who}: column {unnamed[0]} of the variables has no name (an index that was written along?)"
        )

    def place(row: int, column: str) -> str:
        when = "" if axis is None else f" ({axis.label(row)})"
        return f"client {owners[row]!r}, column {column!r}, row {row + 1}{when}"

    values = np.empty((table.n_rows, len(columns)))
    for j, (name, column) in enumerate(table.columns.items()):
        values[:, j] = _floats(column.to_numpy(), partial(place, column=name))
    codes, names = pd.factorize(np.array(owners, dtype=object))
    if len(names) < 2:
        axis = TimeAxis.counted(table.n_rows) if axis is None else axis
        return [_Raw(owner, columns, values, np.arange(1, len(values) + 1), axis) for owner in names], label
    raws = []
    ends = np.cumsum(np.bincount(codes))[:-1]
    for name, rows in zip(names, np.split(np.argsort(codes, kind="stable"), ends), strict=True):
        own = TimeAxis.counted(len(rows)) if axis is None else replace(axis, index=axis.index[rows])
        raws.append(_Raw(name, columns, values[rows], rows + 1, own))
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
        hint = (
            " (numbers have a decimal point and no thousands separators)"
            if re.search(r"\d", str(text))
            else ""
        )
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


def _array(given: Any, who: str) -> np.ndarray:
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


def _matched(raw: _Raw, first: _Raw) -> _Raw:
    """The client with its columns in the order of the first client."""
    if not raw.name.strip():
        raise DataError("the name of a client is empty")
    if not raw.columns or _repeated(raw.columns):
        raise DataError(
            f"client {raw.name!r}: no columns, or repeated ones: {_listed(_repeated(raw.columns))}"
        )
    if len(raw.values) == 0:
        raise DataError(f"client {raw.name!r} has no rows")
    if raw.columns == first.columns:
        return raw
    lacking = [name for name in first.columns if name not in raw.columns]
    extra = [name for name in raw.columns if name not in first.columns]
    if lacking or extra:
        without = f" missing {_listed(lacking)}" if lacking else ""
        beyond = f" extra {_listed(extra)}" if extra else ""
        raise DataError(
            f"clients {first.name!r} and {raw.name!r} have different columns: {raw.name!r} has{without}{beyond}"
        )
    return replace(
        raw, columns=first.columns, values=raw.values[:, [raw.columns.index(name) for name in first.columns]]
    )


def _check_values(raw: _Raw, missing: str) -> None:
    """Refuse infinite values, and missing ones unless they are to be dropped; by blocks, for long series."""
    first, count = None, 0
    block = max(1, _BLOCK_NUMBERS // raw.values.shape[1])
    for start in range(0, len(raw.values), block):
        part = raw.values[start : start + block]
        bad = np.isinf(part) if missing == "drop" else ~np.isfinite(part)
        if bad.any():
            count += int(bad.sum())
            row, column = divmod(int(bad.argmax()), bad.shape[1])
            first = first or (start + row, column)
    if first is None:
        return
    what = "missing" if np.isnan(raw.values[first]) else "infinite"
    cure = (
        "" if missing == "drop" else ', or pass missing="drop" to keep missing values out of the computations'
    )
    raise DataError(
        f"client {raw.name!r}, column {raw.columns[first[1]]!r}, {raw.place(first[0])}: the value is {what} "
        f"({count} such value(s) in this client); fill them or leave the rows out{cure}"
    )


def _sorted(raw: _Raw) -> _Raw:
    """The rows in the order of their times, each of which must be there once."""
    index = raw.time.index
    if not index.is_unique:
        twice = index[index.duplicated()].unique()[:3]
        which = [np.flatnonzero(index == time) for time in twice]
        listed = "; ".join(
            f"{raw.time.label(at[0])} in rows {', '.join(str(raw.rows[row]) for row in at[:5])}"
            for at in which
        )
        raise DataError(
            f"client {raw.name!r}: times occur more than once: {listed}; keep one row for each time"
        )
    if index.is_monotonic_increasing:
        return raw
    order = index.argsort()
    return replace(
        raw, values=raw.values[order], rows=raw.rows[order], time=replace(raw.time, index=index[order])
    )


def _common_step(raws: list[_Raw], freq: Any) -> Any:
    """The step that all clients share; the longest client tells it best."""
    first = raws[0]
    for raw in raws[1:]:
        same = raw.time.has_times == first.time.has_times and timeaxis.comparable(
            raw.time.index, first.time.index
        )
        if not same:
            kinds = [
                f"{one.name!r} ({one.time.index.dtype if one.time.has_times else 'none'})"
                for one in (first, raw)
            ]
            raise DataError(f"clients {kinds[0]} and {kinds[1]} have different kinds of times")
    if freq is not None:
        return timeaxis.as_step(freq, first.time.index)
    steps = [timeaxis.infer_step(raw.time.index) for raw in raws]
    longest = max(range(len(raws)), key=lambda k: len(raws[k].values))
    for raw, step in zip(raws, steps, strict=True):
        if step is not None and step != steps[longest] and not _may_have(raw, step, steps[longest]):
            names = f"{raws[longest].name!r} ({_spoken(steps[longest])}) and {raw.name!r} ({_spoken(step)})"
            raise DataError(
                f"clients {names} have different frequencies; give freq= if this was guessed wrongly"
            )
    return steps[longest]


def _may_have(raw: _Raw, own: Any, common: Any) -> bool:
    """Whether a client fits the common step after all: it is short, or has gaps by its own step too."""
    positions = timeaxis.step_positions(raw.time.index, common)
    if (positions < 0).any():
        return False
    last = len(positions) - 1
    return positions[-1] == last or last < 2 or timeaxis.step_positions(raw.time.index, own)[-1] != last


def _spoken(step: Any) -> str:
    return f"step {step}" if isinstance(step, int) else f"frequency {step.freqstr}"


def _regular(raw: _Raw, step: Any, missing: str, labels: str) -> ClientSeries:
    """The client on a regular axis: gaps are an error, or become rows of NaN."""
    index, n_rows = raw.time.index, len(raw.values)
    axis = TimeAxis(index, step, labels)
    positions = np.arange(n_rows) if step is None else timeaxis.step_positions(index, step)
    if (off := np.flatnonzero(positions < 0)).size:
        raise DataError(
            f"client {raw.name!r}: {raw.place(off[0])} is not on the grid of {_spoken(step)}; "
            "correct the time, or give freq="
        )
    expected = int(positions[-1]) + 1
    if expected == n_rows:
        return ClientSeries(raw.name, _readonly(raw.values), axis)
    if missing == "error" or expected > _MAX_FILL * n_rows:
        early = np.setdiff1d(np.arange(min(expected, n_rows + 3)), positions)[:3]
        grid = replace(axis, index=timeaxis.times_from(index, 0, step, int(early[-1]) + 1))
        listed = ", ".join(grid.label(int(at)) for at in early)
        cure = (
            'fill the gaps, or pass missing="drop"'
            if missing == "error"
            else "too many to be gaps: give freq="
        )
        raise DataError(
            f"client {raw.name!r}: {expected - n_rows} time(s) are missing by the {_spoken(step)}, "
            f"the first of them {listed}; {cure}"
        )
    values = np.full((expected, raw.values.shape[1]), np.nan)
    values[positions] = raw.values
    return ClientSeries(
        raw.name, _readonly(values), replace(axis, index=timeaxis.times_from(index, 0, step, expected))
    )


def build_frame(data: Mapping[str, Any], kind: str) -> Any:
    """A frame of the kind "pandas", "polars" or "pyarrow" from columns by name.

    Lists, NumPy arrays and pandas indexes are understood; time zones are kept, and periods, which only pandas
    has, become text elsewhere.
    """
    if kind not in _FRAME_KINDS:
        raise OptionError(f"the kind of frame must be one of {_listed(_FRAME_KINDS)}, not {kind!r}")
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
    zoned = [
        nw.col(name).dt.replace_time_zone("UTC").dt.convert_time_zone(zone) for name, zone in zones.items()
    ]
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


def as_panel(data: Any, *, missing: str = "error", **kwargs: Any) -> Panel:
    """A panel from whatever a panel can be made of.

    Parameters
    ----------
    data : Panel, mapping, frame or array
        A mapping of clients to frames or arrays; one long frame (with a column "unique_id" or "client", or
        the one that ``client=`` names); or a frame, series or array of one client, which is called "series".
    missing : {"error", "drop"}
        As in `Panel.from_frames`. A `Panel` is returned as it is.
    **kwargs
        Options of the constructor that fits the data: `time`, `freq`, `client`, `columns`.

    Returns
    -------
    Panel

    Raises
    ------
    DataError, DataTypeError
        As in `Panel.from_frames`.
    """
    if isinstance(data, Panel):
        return data
    if isinstance(data, Mapping):
        parts = {name: _series_frame(part) for name, part in data.items()}
        frames = [_is_frame(part) for part in parts.values()]
        if any(frames) != all(frames):
            raise DataTypeError("the mapping holds both frames and arrays; give only one of the two")
        return (Panel.from_frames if any(frames) else Panel.from_arrays)(parts, missing=missing, **kwargs)
    data = _series_frame(data)
    if not _is_frame(data):
        if isinstance(data, str | bytes) or not (hasattr(data, "__array__") or isinstance(data, Sequence)):
            raise DataTypeError(
                f"no panel can be made of {type(data).__name__}; for files there is read_panel"
            )
        return Panel.from_arrays({"series": data}, missing=missing, **kwargs)
    known = [
        name for name in ("unique_id", "client") if name in nw.from_native(data).collect_schema().names()
    ]
    if "client" in kwargs or known:
        return Panel.from_long(data, missing=missing, **({"client": known[0]} if known else {}) | kwargs)
    return Panel.from_frames({"series": data}, missing=missing, **kwargs)


def _series_frame(data: Any) -> Any:
    """A one-column frame in place of a series; anything else as it is."""
    wrapped = nw.from_native(data, pass_through=True, allow_series=True)
    if not isinstance(wrapped, nw.Series):
        return data
    return wrapped.alias(str(wrapped.name or "y1")).to_frame().to_native()
