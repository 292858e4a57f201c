"""The time axis of one client: reading times, their frequency, what comes next, and how to write it.

A time axis is regular: every time follows the one before by one ``step``. There are three kinds: datetimes,
pandas periods and integers. Datetimes at the same hour of the day follow the calendar (months, weeks, days,
business days: in local time, so a day may have 23 hours); other datetimes follow the clock (hours, minutes:
absolute time).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from fedvar_fast.exceptions import DataError, DataTypeError, OptionError, OptionTypeError

__all__ = [
    "TimeAxis",
    "as_step",
    "comparable",
    "infer_step",
    "parse_text",
    "parse_times",
    "step_positions",
    "times_from",
]

# How times are written. Any other value of `TimeAxis.labels` is a strftime pattern of the user's strings, in
# which "%3f" stands for a fraction of a second with three digits.
NATIVE = "native"  # datetimes, periods or integers, as they are
DATES = "date"  # datetime.date objects, or a Date column
DIGITS = "digits"  # integers written as text, such as "1970"
COUNTED = "counted"  # the user gave no times: rows are counted from 0

_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FREQUENCIES = (str, int, np.integer, dt.timedelta, pd.offsets.BaseOffset)
_MONTH_OFFSETS = (pd.offsets.MonthBegin, pd.offsets.MonthEnd, pd.offsets.BMonthBegin, pd.offsets.BMonthEnd)
_PeriodIndex: Any = pd.PeriodIndex  # pandas-stubs lack its constructors
_Period: Any = pd.Period
_CLOCK_STEPS: tuple[tuple[int, type[pd.offsets.Tick]], ...] = (
    (3600 * 10**9, pd.offsets.Hour),
    (60 * 10**9, pd.offsets.Minute),
    (10**9, pd.offsets.Second),
    (10**6, pd.offsets.Milli),
    (10**3, pd.offsets.Micro),
    (1, pd.offsets.Nano),
)


@dataclass(frozen=True, eq=False)
class TimeAxis:
    """The times of one client.

    Parameters
    ----------
    index : DatetimeIndex, PeriodIndex or integer Index
        Strictly increasing.
    step : pandas offset, int or None
        From one time to the next. For datetimes a pandas offset, for periods and integers a number of units;
        None when it cannot be known (a single row).
    labels : str
        How the user wrote the times: "native", "date", "digits", "counted" (there were none) or a strftime
        pattern.
    """

    index: pd.Index
    step: Any
    labels: str = NATIVE

    @classmethod
    def counted(cls, n_rows: int) -> TimeAxis:
        """The axis 0, 1, ... of rows without times."""
        return cls(pd.Index(np.arange(n_rows, dtype=np.int64)), 1, COUNTED)

    @property
    def kind(self) -> str:
        """One of "datetime", "period" and "integer"."""
        return time_kind(self.index)

    @property
    def has_times(self) -> bool:
        """False when the user gave no times and the rows are merely counted."""
        return self.labels != COUNTED

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: slice) -> TimeAxis:
        return replace(self, index=self.index[rows])

    def tail(self, n_rows: int) -> TimeAxis:
        """The last `n_rows` times; one is enough to forecast from, so a model file keeps only that."""
        return self[max(len(self) - n_rows, 0) :]

    def extend(self, steps: int) -> TimeAxis:
        """The next `steps` times after the end (only those); a `DataError` where the step is not known."""
        if len(self) == 0:
            raise DataError("an empty time axis has no next time")
        if self.step is None:
            raise DataError(f"the frequency is not known from a single row ({self.label(0)}): give freq=, or more rows")
        following = times_from(self.index, len(self) - 1, self.step, steps + 1)
        return replace(self, index=following[1:])

    def append(self, other: TimeAxis) -> TimeAxis:
        """The axis followed by `other`, which must continue right after the end.

        Rows without times (`other.has_times` is False) are taken to continue. If `other` begins elsewhere,
        or has another step or kind, a `DataError` says what was expected.
        """
        if len(other) == 0:
            return self
        if len(self) == 0:
            return other
        if not other.has_times:
            return replace(self, index=self.index.append(self.extend(len(other)).index))
        if not comparable(self.index, other.index):
            raise DataError(
                f"the new rows have times of dtype {other.index.dtype} (such as {other.label(0)}), the old "
                f"ones {self.index.dtype} (such as {self.label(-1)})"
            )
        step = self.step
        if step is None and other.index[0] > self.index[-1]:
            step = infer_step(self.index.append(other.index).sort_values())
        expected = replace(self, step=step).extend(len(other))
        wrong = np.flatnonzero(np.asarray(expected.index != other.index))
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f"the new rows do not continue the old ones, which end at {self.label(-1)}: new row "
                f"{at + 1} should be {expected.label(at)} but is {other.label(at)}"
            )
        # `expected` and not `other`: the same instants, but in this axis' time zone and unit.
        return replace(self, index=self.index.append(expected.index), step=step)

    def to_labels(self) -> list[Any] | np.ndarray:
        """The times in the user's own form: strings, dates, datetimes, periods or integers."""
        if self.labels in (NATIVE, COUNTED):
            zoned = isinstance(self.index, pd.DatetimeIndex) and self.index.tz is not None
            return np.asarray(self.index, dtype=object) if zoned else self.index.to_numpy()
        if self.labels == DATES:
            return list(pd.DatetimeIndex(self.index).date)
        if self.labels == DIGITS:
            return [str(value) for value in self.index]
        return _strftime(self.index, self.labels)

    def label(self, row: int) -> str:
        """One time as text, for messages."""
        if self.labels == NATIVE:
            return str(self.index[row]).removesuffix(" 00:00:00")
        return str(replace(self, index=self.index[[row]]).to_labels()[0])

    def to_dict(self) -> dict[str, Any]:
        """The axis as plain values that JSON can hold; `from_dict` gives back exactly the same axis."""
        content: dict[str, Any] = {"kind": self.kind, "labels": self.labels, "step": _step_to_json(self.step)}
        index = self.index
        if isinstance(index, pd.DatetimeIndex):
            content |= {"unit": index.unit, "tz": None if index.tz is None else _zone_name(index)}
        if isinstance(index, pd.PeriodIndex):
            content["freq"] = index.freqstr
        numbers = index.asi8 if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex) else index.to_numpy()
        return content | {"values": [int(value) for value in numbers]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TimeAxis:
        """The axis written by `to_dict`; a `DataError` where the content is none."""
        try:
            numbers = np.array(content["values"], dtype=np.int64)
            index: pd.Index = pd.Index(numbers)
            if content["kind"] == "datetime":
                index = pd.DatetimeIndex(numbers.view(f"M8[{content['unit']}]"))
                if content["tz"] is not None:
                    index = index.tz_localize("UTC").tz_convert(content["tz"])
            elif content["kind"] == "period":
                index = _PeriodIndex.from_ordinals(numbers, freq=content["freq"])
            return cls(index, _step_from_json(content["step"]), str(content["labels"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not a time axis: {error!r}") from error


def time_kind(index: pd.Index) -> str:
    """One of "datetime", "period" and "integer"."""
    if isinstance(index, pd.DatetimeIndex):
        return "datetime"
    return "period" if isinstance(index, pd.PeriodIndex) else "integer"


def comparable(first: pd.Index, second: pd.Index) -> bool:
    """Whether two axes are of one kind: all with or all without a time zone, periods of one frequency."""
    if isinstance(first, pd.DatetimeIndex) and isinstance(second, pd.DatetimeIndex):
        return (first.tz is None) == (second.tz is None)
    periods = isinstance(first, pd.PeriodIndex) and isinstance(second, pd.PeriodIndex)
    return bool(first.dtype == second.dtype) if periods else time_kind(first) == time_kind(second)


def _strftime(index: Any, pattern: str) -> list[str]:
    """Write times by a pattern; `strftime` itself knows fractions of six digits only."""
    fraction = re.search(r"%(\d)f", pattern)
    if fraction is None or not isinstance(index, pd.DatetimeIndex):
        return [str(text) for text in index.strftime(pattern)]
    digits = int(fraction[1])
    nanoseconds = index.microsecond.to_numpy().astype(np.int64) * 1000 + index.nanosecond.to_numpy()
    middles = [f"{value:09d}"[:digits] for value in nanoseconds]
    heads = index.strftime(pattern[: fraction.start()])
    tail = pattern[fraction.end() :]  # "" or a literal offset: see parse_text
    return [f"{head}{middle}{tail}" for head, middle in zip(heads, middles, strict=True)]


def _zone_name(index: pd.DatetimeIndex) -> str:
    """The name of the time zone, checked to mean the same zone again."""
    name = str(index.tz)
    try:
        if list(index.tz_convert(name).strftime("%z")) == list(index.strftime("%z")):
            return name
    except (LookupError, ValueError, TypeError) as error:
        raise DataError(f"the time zone {name!r} has no name to store; use 'Europe/Berlin' or such") from error
    raise DataError(f"the time zone {name!r} has another meaning when read again; use 'Europe/Berlin' or such")


def _step_to_json(step: Any) -> Any:
    """A step as int, None or a small dict."""
    if step is None or isinstance(step, int):
        return step
    plain = type(step) is pd.DateOffset
    return {"date_offset": {"n": step.n} | dict(step.kwds)} if plain else {"freq": step.freqstr}


def _step_from_json(content: Any) -> Any:
    """The step written by `_step_to_json`."""
    if content is None or isinstance(content, int):
        return content
    if "date_offset" in content:
        return pd.DateOffset(**content["date_offset"])
    return pd.tseries.frequencies.to_offset(content["freq"])


def _is_clock(step: Any) -> bool:
    """True for hours, minutes and so on: absolute time; in pandas 2 a Day, too, is a Tick."""
    return isinstance(step, pd.offsets.Tick) and not isinstance(step, pd.offsets.Day)


def _localize(wall: pd.DatetimeIndex, like: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Local times as instants: one that a clock change skips moves on, of one that comes twice the first."""
    wall = wall.as_unit(like.unit)
    if like.tz is None:
        return wall
    return wall.tz_localize(like.tz, nonexistent="shift_forward", ambiguous=np.ones(len(wall), dtype=bool))


def _time_of_day(index: pd.DatetimeIndex) -> Any:
    """The usual local time of day (one day may differ: when the clock change skips that time)."""
    wall = index.tz_localize(None)
    return (wall - wall.normalize()).value_counts().index[0]


def times_from(index: Any, row: int, step: Any, count: int) -> Any:
    """The regular times that begin with ``index[row]``, `count` of them."""
    if isinstance(index, pd.PeriodIndex):
        return _PeriodIndex.from_ordinals(index.asi8[row] + step * np.arange(count), freq=index.freq)
    if not isinstance(index, pd.DatetimeIndex):
        return pd.Index(index.to_numpy()[row] + step * np.arange(count, dtype=np.int64))
    if _is_clock(step):
        return pd.date_range(index[row], periods=count, freq=step).as_unit(index.unit)
    wall = index.tz_localize(None)[row].normalize() + _time_of_day(index)
    return _localize(pd.date_range(wall, periods=count, freq=step), index)


def step_positions(index: pd.Index, step: Any) -> np.ndarray:
    """How many steps each time lies after the first: 0, 1, 2, ... without gaps; -1 off the grid."""
    if isinstance(index, pd.DatetimeIndex) and not _is_clock(step):
        wall = index.tz_localize(None)
        first = wall[0].normalize() + _time_of_day(index)
        grid = _localize(pd.date_range(first, max(first, wall[-1]) + pd.Timedelta(days=1), freq=step), index)
        return np.asarray(grid.get_indexer(index), dtype=np.int64)
    numbers, unit = _numbers(index), step
    if isinstance(index, pd.DatetimeIndex):
        nanoseconds = pd.Timedelta(step).value
        unit, rest = divmod(nanoseconds * _UNITS_PER_SECOND[index.unit], 10**9)
        if rest:
            return np.where(np.arange(len(index)) == 0, 0, -1)
    steps, rests = np.divmod(numbers - numbers[0], unit)
    return np.where(rests == 0, steps, -1)


def _numbers(index: pd.Index) -> np.ndarray:
    """Times as int64 in their own unit."""
    if isinstance(index, pd.DatetimeIndex | pd.PeriodIndex):
        return np.asarray(index.asi8)
    return np.asarray(index.to_numpy(), dtype=np.int64)


def infer_step(index: pd.Index) -> Any:
    """The largest step that leads from every time to the next, looking over gaps; None for a single time.

    (`pandas.infer_freq` gives nothing as soon as there is one gap.)
    """
    if len(index) < 2:
        return None
    if not isinstance(index, pd.DatetimeIndex):
        return int(np.gcd.reduce(np.diff(_numbers(index))))
    usual = _time_of_day(index)
    days = index.tz_localize(None).normalize()
    if (_localize(days + usual, index) == index).all():
        return _calendar_step(days)
    nanoseconds = int(np.gcd.reduce(np.diff(_numbers(index)))) * 10**9 // _UNITS_PER_SECOND[index.unit]
    return next(tick(nanoseconds // size) for size, tick in _CLOCK_STEPS if nanoseconds % size == 0)


def _calendar_step(days: pd.DatetimeIndex) -> pd.offsets.BaseOffset:
    """The step between days (midnights, increasing)."""
    months = np.diff(days.year.to_numpy().astype(np.int64) * 12 + days.month.to_numpy())
    gap_months = int(np.gcd.reduce(months))
    if (months > 0).all():
        for offset in _MONTH_OFFSETS:
            if all(offset().is_on_offset(day) for day in days):
                return offset(gap_months)
        if len(set(days.day)) == 1 and days.day[0] <= 28:
            return pd.DateOffset(months=gap_months)
    numbers = days.to_numpy().astype("M8[D]").astype(np.int64)
    gap = int(np.gcd.reduce(np.diff(numbers)))
    # 1970-01-01 was a Thursday: (number + 3) // 7 counts weeks that begin on Monday.
    weeks, weekday = np.divmod(numbers + 3, 7)
    if gap == 1 and (weekday < 5).all() and weeks[-1] > weeks[0]:
        return pd.offsets.BusinessDay()
    return pd.offsets.Day(gap)


def as_step(freq: Any, index: pd.Index) -> Any:
    """The step that a user's ``freq=`` means for such an index; an `OptionError` where it means none."""
    if isinstance(freq, bool) or not isinstance(freq, _FREQUENCIES):
        raise OptionTypeError(f"freq must be a pandas frequency such as 'MS', or a number, not {freq!r}")
    integer = time_kind(index) == "integer"
    value: Any = freq
    if isinstance(freq, int | np.integer) != integer:
        wanted = "an integer" if integer else "a pandas frequency such as 'MS' or 'QE'"
        raise OptionError(f"freq={freq!r}: the times are of dtype {index.dtype}, so freq must be {wanted}")
    try:
        if integer:
            step: Any = int(value)
        elif isinstance(index, pd.PeriodIndex):
            step = int((_Period(ordinal=0, freq=index.freq) + _period_offset(freq)).ordinal)
        else:
            step = pd.tseries.frequencies.to_offset(value)
    except (ValueError, TypeError) as error:  # pandas' IncompatibleFrequency is either
        raise OptionError(f"freq={freq!r} does not suit times of dtype {index.dtype}: {error}") from error
    if (step if isinstance(step, int) else step.n) < 1:
        raise OptionError(f"freq={freq!r} does not lead forwards")
    return step


def _period_offset(freq: Any) -> Any:
    """A frequency of periods ('M', 'Q') or of datetimes ('ME', 'QE') as an offset."""
    try:
        return _Period(ordinal=0, freq=freq).freq
    except ValueError:
        return pd.tseries.frequencies.to_offset(freq)


_QUARTER = re.compile(r"(\d{4})([-/ ]?)([Qq])([1-4])")
_MONTH = re.compile(r"(\d{4})([-/]|[Mm])(0[1-9]|1[0-2])")
_DATETIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:([T ])(\d\d:\d\d)(:\d\d)?(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_DIGITS = re.compile(r"[+-]?\d{1,7}", re.ASCII)


def parse_times(values: pd.Index, where: str) -> tuple[pd.Index, str]:
    """Times of any form as an index in the order given, and how they were written (`TimeAxis.labels`).

    A missing time is a `DataError`, a value that is no time a `DataTypeError`; `where` names the column in
    them.
    """
    if isinstance(values, pd.CategoricalIndex):
        values = pd.Index(values.astype(values.categories.dtype))
    missing = np.flatnonzero(np.asarray(values.isna()))
    if len(missing):
        raise DataError(f"{where}: {len(missing)} time(s) missing, the first in row {missing[0] + 1}")
    if isinstance(values, pd.PeriodIndex | pd.DatetimeIndex):
        return values.rename(None), NATIVE
    if pd.api.types.is_datetime64_any_dtype(values.dtype):  # pyarrow-backed pandas columns
        return pd.DatetimeIndex(values), NATIVE
    if pd.api.types.is_bool_dtype(values.dtype) or pd.api.types.is_complex_dtype(values.dtype):
        raise DataTypeError(f"{where}: {values.dtype} values are no times")
    if pd.api.types.is_numeric_dtype(values.dtype):
        return _parse_numbers(values, where), NATIVE
    return _parse_objects(values, where)


def _parse_numbers(values: pd.Index, where: str) -> pd.Index:
    """Whole numbers (years, counters) as int64."""
    numbers = values.to_numpy()
    if numbers.dtype.kind not in "iu":
        numbers = numbers.astype(np.float64)
        wrong = np.flatnonzero(~((numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)))
        if len(wrong):
            raise DataTypeError(f"{where}: row {wrong[0] + 1}: {numbers[wrong[0]]} is no whole number")
    return pd.Index(numbers.astype(np.int64))


def _parse_objects(values: pd.Index, where: str) -> tuple[pd.Index, str]:
    """Columns of Python objects: all text, all dates, all datetimes, ..."""
    objects = list(values)
    if all(isinstance(value, str) for value in objects):
        parsed = parse_text(objects)
        if parsed is None:
            _refuse_text(objects, where)
        return parsed
    if all(isinstance(value, pd.Period) for value in objects):
        return pd.PeriodIndex(objects), NATIVE
    if all(isinstance(value, dt.datetime | np.datetime64) for value in objects):
        return pd.DatetimeIndex(objects), NATIVE
    if all(isinstance(value, dt.date) and not isinstance(value, dt.datetime) for value in objects):
        return pd.DatetimeIndex(np.array(objects, dtype="M8[D]").astype("M8[s]")), DATES
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in objects):
        return pd.Index(np.array(objects, dtype=np.int64)), NATIVE
    kinds = sorted({type(value).__name__ for value in objects})
    raise DataTypeError(f"{where}: these values are no times, or of several kinds: {', '.join(kinds)}")


def _refuse_text(texts: Sequence[str], where: str) -> NoReturn:
    """Name the first text that is no time, or is not written like the first one."""
    for row, text in enumerate(texts):
        if parse_text([text]) is None:
            raise DataTypeError(
                f"{where}: row {row + 1}: {text!r} is no time that is understood (such as 1991-01-31, "
                "1991-01-31 15:00, 1991-01, 1991-Q1); convert the column to datetimes"
            )
    unlike = next((row for row, text in enumerate(texts) if parse_text([texts[0], text]) is None), 0)
    raise DataTypeError(
        f"{where}: row {unlike + 1}: {texts[unlike]!r} is not written like the first time, {texts[0]!r}"
    )


def parse_text(texts: Sequence[str]) -> tuple[pd.Index, str] | None:
    """Text as times, with the pattern that writes them again; None when they are not all times of one form.

    Times with several offsets from UTC (local time over a clock change) come out as UTC. Dates such as
    01/02/2020, of which nobody can tell the day from the month, are not read.
    """
    texts = [text.strip() for text in texts]
    if not texts:
        return None
    if all(map(_DIGITS.fullmatch, texts)):
        return pd.Index(np.array([int(text) for text in texts], dtype=np.int64)), DIGITS
    first = texts[0]
    if match := _QUARTER.fullmatch(first):
        return _parse_periods(texts, _QUARTER, f"%Y{match[2]}{match[3]}%q")
    if match := _MONTH.fullmatch(first):
        return _parse_periods(texts, _MONTH, f"%Y{match[2]}%m")
    return _parse_datetimes(texts)


def _parse_periods(texts: Sequence[str], regex: re.Pattern[str], pattern: str) -> tuple[pd.Index, str] | None:
    """Quarters or months, all written by one pattern."""
    matches = [match for match in map(regex.fullmatch, texts) if match is not None]
    if len(matches) < len(texts):
        return None
    years = [int(match[1]) for match in matches]
    parts = [int(match[match.re.groups]) for match in matches]
    fields = {"month": parts, "freq": "M"} if regex is _MONTH else {"quarter": parts, "freq": "Q"}
    index = _PeriodIndex.from_fields(year=years, **fields)
    return (index, pattern) if _strftime(index, pattern) == list(texts) else None


def _parse_datetimes(texts: Sequence[str]) -> tuple[pd.Index, str] | None:
    """Dates, and times of day with or without an offset; the most detailed one gives the pattern."""
    matches = [match for match in map(_DATETIME.fullmatch, texts) if match is not None]
    offsets = {match[6] for match in matches}
    if len(matches) < len(texts) or (None in offsets and len(offsets) > 1):
        return None
    try:
        index = pd.DatetimeIndex(pd.to_datetime(list(texts), format="ISO8601", utc=len(offsets) > 1))
    except ValueError:  # the 31st of February, or hour 25: no time, and the caller says which
        return None
    _, separator, clock, seconds, fraction, offset = max(matches, key=lambda match: len(match[0])).groups()
    pattern = "%Y-%m-%d"
    if clock:
        pattern += f"{separator}%H:%M" + (":%S" if seconds else "")
        pattern += f".%{len(fraction)}f" if fraction else ""
    if offset:
        pattern += offset if len(offsets) == 1 else "+00:00"
    return index, pattern
