"""Clients' series with one set of columns: frames and arrays of many kinds become a `Panel`, checked once.

Nothing here changes the user's data, and values are copied only where they are not float64 in rows already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from fedvar_fast import timeaxis
from fedvar_fast._tables import (
    RawClient,
    as_rows,
    build_frame,
    find_time_column,
    free_name,
    is_frame,
    listed,
    name_each,
    raw_clients,
    read_table,
    readonly,
    repeated,
    wrap_frame,
)
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.timeaxis import TimeAxis

__all__ = ["ClientSeries", "Panel", "as_panel", "build_frame", "find_time_column"]

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
        self.client_label = free_name(client_label, self.columns)
        self.time_label = free_name(time_label, (*self.columns, self.client_label))
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
            raise DataError(f"no client {name!r}; the clients are {listed(self.clients)}")
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
        return f"<Panel: {shape}: {listed(self.clients, 4)}>"

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
        for name, frame in name_each(frames):
            table = read_table(frame, f"client {name!r}")
            some, found = raw_clients(table, [name] * table.n_rows, time)
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
        table = read_table(frame, "the frame")
        if client not in table.columns:
            raise DataError(f"no client column {client!r}; the columns are {listed(table.columns)}")
        column = table.columns.pop(client)
        unnamed = np.flatnonzero(column.is_null().to_numpy())
        if len(unnamed):
            raise DataError(f"column {client!r}: no client in row {unnamed[0] + 1}")
        owners = [str(value) for value in column.to_list()]
        raws, label = raw_clients(table, owners, None if time == "ds" and time not in table.columns else time)
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
        for name, given in name_each(arrays):
            values = as_rows(given, f"client {name!r}")
            names = [f"y{j + 1}" for j in range(values.shape[1])] if columns is None else list(map(str, columns))
            if len(names) != values.shape[1]:
                raise DataError(f"client {name!r} has {values.shape[1]} column(s), but columns= names {len(names)}")
            raws.append(RawClient(name, names, values, np.arange(1, len(values) + 1), TimeAxis.counted(len(values))))
        return cls._assemble(raws, ("client", "time", "pandas"), None, missing)

    @classmethod
    def _assemble(cls, raws: list[RawClient], labels: tuple[str, str, str], freq: Any, missing: str) -> Panel:
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
        return Panel(series, self.columns if columns is None else columns, frame_kind=self.frame_kind, **labels)

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
            if not chosen or repeated(chosen) or not set(chosen) <= set(known):
                raise DataError(f"cannot choose {what}s {listed(chosen)}: choose some of {listed(known)}, each once")
        chosen_series = [self[name] for name in names]
        if wanted != list(self.columns):
            at = [self.columns.index(column) for column in wanted]
            chosen_series = [replace(one, values=readonly(one.values[:, at])) for one in chosen_series]
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


def _matched(raw: RawClient, first: RawClient) -> RawClient:
    """The client with its columns in the order of the first client."""
    if not raw.name.strip():
        raise DataError("the name of a client is empty")
    if not raw.columns or repeated(raw.columns):
        raise DataError(f"client {raw.name!r}: no columns, or repeated ones: {listed(repeated(raw.columns))}")
    if len(raw.values) == 0:
        raise DataError(f"client {raw.name!r} has no rows")
    if raw.columns == first.columns:
        return raw
    lacking = [name for name in first.columns if name not in raw.columns]
    extra = [name for name in raw.columns if name not in first.columns]
    if lacking or extra:
        without = f" missing {listed(lacking)}" if lacking else ""
        beyond = f" extra {listed(extra)}" if extra else ""
        names = f"clients {first.name!r} and {raw.name!r}"
        raise DataError(f"{names} have different columns: {raw.name!r} has{without}{beyond}")
    return replace(
        raw, columns=first.columns, values=raw.values[:, [raw.columns.index(name) for name in first.columns]]
    )


def _check_values(raw: RawClient, missing: str) -> None:
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
    cure = "" if missing == "drop" else ', or pass missing="drop" to keep missing values out of the computations'
    raise DataError(
        f"client {raw.name!r}, column {raw.columns[first[1]]!r}, {raw.place(first[0])}: the value is {what} "
        f"({count} such value(s) in this client); fill them or leave the rows out{cure}"
    )


def _sorted(raw: RawClient) -> RawClient:
    """The rows in the order of their times, each of which must be there once."""
    index = raw.time.index
    if not index.is_unique:
        twice = index[index.duplicated()].unique()[:3]
        which = [np.flatnonzero(index == time) for time in twice]
        listed = "; ".join(
            f"{raw.time.label(at[0])} in rows {', '.join(str(raw.rows[row]) for row in at[:5])}" for at in which
        )
        raise DataError(f"client {raw.name!r}: times occur more than once: {listed}; keep one row for each time")
    if index.is_monotonic_increasing:
        return raw
    order = index.argsort()
    return replace(raw, values=raw.values[order], rows=raw.rows[order], time=replace(raw.time, index=index[order]))


def _common_step(raws: list[RawClient], freq: Any) -> Any:
    """The step that all clients share; the longest client tells it best."""
    first = raws[0]
    for raw in raws[1:]:
        same = raw.time.has_times == first.time.has_times and timeaxis.comparable(raw.time.index, first.time.index)
        if not same:
            kinds = [f"{one.name!r} ({one.time.index.dtype if one.time.has_times else 'none'})" for one in (first, raw)]
            raise DataError(f"clients {kinds[0]} and {kinds[1]} have different kinds of times")
    if freq is not None:
        return timeaxis.as_step(freq, first.time.index)
    longest = max(raws, key=lambda raw: len(raw.values))
    common = timeaxis.infer_step(longest.time.index)
    for raw in raws:
        if common is not None and not _fits(raw, common):
            own = timeaxis.infer_step(raw.time.index)
            names = f"{longest.name!r} ({_spoken(common)}) and {raw.name!r} ({_spoken(own)})"
            raise DataError(f"clients {names} have different frequencies; give freq= if this was guessed wrongly")
    return common


def _fits(raw: RawClient, common: Any) -> bool:
    """Whether a client has the common step: without gaps, or with gaps where its own step does not do better.

    Two rows tell nothing: a wider step of their own is taken for a gap.
    """
    positions = timeaxis.step_positions(raw.time.index, common)
    last = len(positions) - 1
    if (positions < 0).any():
        return last == 0  # a single row off the grid is named later
    if positions[-1] == last or last < 2:
        return True
    own = timeaxis.infer_step(raw.time.index)
    return bool(own == common or timeaxis.step_positions(raw.time.index, own)[-1] != last)


def _spoken(step: Any) -> str:
    return f"step {step}" if isinstance(step, int) else f"frequency {step.freqstr}"


def _regular(raw: RawClient, step: Any, missing: str, labels: str) -> ClientSeries:
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
        return ClientSeries(raw.name, readonly(raw.values), axis)
    if missing == "error" or expected > _MAX_FILL * n_rows:
        early = np.setdiff1d(np.arange(min(expected, n_rows + 3)), positions)[:3]
        grid = replace(axis, index=timeaxis.times_from(index, 0, step, int(early[-1]) + 1))
        listed = ", ".join(grid.label(int(at)) for at in early)
        cure = 'fill the gaps, or pass missing="drop"' if missing == "error" else "too many to be gaps: give freq="
        raise DataError(
            f"client {raw.name!r}: {expected - n_rows} time(s) are missing by the {_spoken(step)}, "
            f"the first of them {listed}; {cure}"
        )
    values = np.full((expected, raw.values.shape[1]), np.nan)
    values[positions] = raw.values
    return ClientSeries(raw.name, readonly(values), replace(axis, index=timeaxis.times_from(index, 0, step, expected)))


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
        frames = [is_frame(part) for part in parts.values()]
        if any(frames) != all(frames):
            raise DataTypeError("the mapping holds both frames and arrays; give only one of the two")
        return (Panel.from_frames if any(frames) else Panel.from_arrays)(parts, missing=missing, **kwargs)
    data = _series_frame(data)
    if not is_frame(data):
        if isinstance(data, str | bytes) or not (hasattr(data, "__array__") or isinstance(data, Sequence)):
            raise DataTypeError(f"no panel can be made of {type(data).__name__}; for files there is read_panel")
        return Panel.from_arrays({"series": data}, missing=missing, **kwargs)
    known = [name for name in ("unique_id", "client") if name in wrap_frame(data).collect_schema().names()]
    if "client" in kwargs or known:
        return Panel.from_long(data, missing=missing, **({"client": known[0]} if known else {}) | kwargs)
    return Panel.from_frames({"series": data}, missing=missing, **kwargs)


def _series_frame(data: Any) -> Any:
    """A one-column frame in place of a series; anything else as it is."""
    wrapped = wrap_frame(data)
    if not isinstance(wrapped, nw.Series):
        return data
    return wrapped.alias(str(wrapped.name or "y1")).to_frame().to_native()
