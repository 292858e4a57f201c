import io
import json
import pathlib
import zoneinfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvar_fast import timeaxis
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError, OptionTypeError
from fedvar_fast.timeaxis import TimeAxis

BERLIN = "Europe/Berlin"


def axis_of(index, labels=timeaxis.NATIVE):
    return TimeAxis(index, timeaxis.infer_step(index), labels)


def axis_of_text(*texts):
    index, labels = timeaxis.parse_times(pd.Index(texts), "here")
    return axis_of(index, labels)


INDEXES = {
    "month starts": pd.date_range("2019-11-01", periods=6, freq="MS"),
    "month ends": pd.date_range("2019-11-30", periods=6, freq="ME"),
    "business month ends": pd.date_range("2019-11-29", periods=6, freq="BME"),
    "mid-months": pd.date_range("2019-11-15", periods=6, freq=pd.DateOffset(months=1)),
    "quarter starts": pd.date_range("2019-10-01", periods=6, freq="QS"),
    "quarter ends": pd.date_range("2019-12-31", periods=6, freq="QE"),
    "year ends": pd.date_range("2016-12-31", periods=6, freq="YE"),
    "weeks": pd.date_range("2019-12-15", periods=6, freq="W"),
    "business days": pd.date_range("2019-12-26", periods=6, freq="B"),
    "days": pd.date_range("2019-12-26", periods=6, freq="D"),
    "days over a clock change": pd.date_range("2020-03-27", periods=6, freq="D", tz=BERLIN),
    "mornings over a clock change": pd.date_range("2020-03-27 08:30", periods=6, freq="D", tz=BERLIN),
    "days without a midnight": pd.date_range("2018-11-02", periods=6, freq="D").tz_localize(
        "America/Sao_Paulo", nonexistent="shift_forward"
    ),
    "hours over a spring change": pd.date_range("2020-03-28 22:00", periods=12, freq="h", tz=BERLIN),
    "hours over an autumn change": pd.date_range("2020-10-24 22:00", periods=12, freq="h", tz=BERLIN),
    "quarters of an hour": pd.date_range("2020-03-29 00:30", periods=12, freq="15min", tz=BERLIN),
    "milliseconds": pd.date_range("2020-03-29", periods=6, freq="250ms").as_unit("ms"),
    "nanoseconds": pd.date_range("2020-03-29", periods=6, freq="7ns", unit="ns"),
    "whole seconds": pd.date_range("1066-10-14", periods=6, freq="D", unit="s"),
    "fixed offset": pd.date_range("2020-03-29", periods=6, freq="h", tz="UTC+03:00"),
    "quarterly periods": pd.period_range("2019Q1", periods=6, freq="Q"),
    "fiscal quarters": pd.period_range("2019Q1", periods=6, freq="Q-MAR"),
    "weekly periods": pd.period_range("2019-12-20", periods=6, freq="W"),
    "every third period": pd.period_range("2019-01", periods=18, freq="M")[::3],
    "years": pd.Index(range(1990, 1996)),
    "every fifth year": pd.Index(range(1990, 2020, 5)),
}


@pytest.fixture(params=INDEXES, name="index")
def _index(request):
    return INDEXES[request.param]


def test_extension_of_the_beginning_is_the_rest(index):
    beginning = axis_of(index)[:3]
    rest = beginning.extend(len(index) - 3).index
    assert rest.dtype == index.dtype
    assert list(rest) == list(index[3:])


def test_positions_count_steps_and_gaps_do_not_hide_the_step(index):
    # The first two stay: a time that a clock change moved says less than the others.
    kept = index[[0, 1, *range(3, len(index))]]
    step = timeaxis.infer_step(kept)
    assert step == timeaxis.infer_step(index)
    assert list(timeaxis.step_positions(kept, step)) == [0, 1, *range(3, len(index))]


def test_axis_survives_json(index):
    axis = axis_of(index)
    again = TimeAxis.from_dict(json.loads(json.dumps(axis.to_dict())))
    assert again.index.dtype == index.dtype
    assert list(again.index) == list(index)
    assert again.step == axis.step
    last = TimeAxis.from_dict(json.loads(json.dumps(axis.tail(1).to_dict())))
    assert list(last.extend(4).to_labels()) == list(axis.extend(4).to_labels())


def test_append_joins_what_continues_and_only_that(index):
    axis = axis_of(index)
    joined = axis[:3].append(axis[3:])
    assert list(joined.index) == list(index)
    assert joined.index.dtype == index.dtype
    with pytest.raises(DataError, match="new row 1 should be"):
        axis[:3].append(axis[4:])
    with pytest.raises(DataError, match="new row 1 should be"):
        axis[:3].append(axis[2:])


@pytest.mark.parametrize(
    ("texts", "following"),
    [
        (["1970-Q1", "1970-Q2", "1970-Q3"], "1970-Q4"),
        (["1970Q3", "1970Q4"], "1971Q1"),
        (["1970 q3", "1970 q4"], "1971 q1"),
        (["1970-11", "1970-12"], "1971-01"),
        (["1970M11", "1970M12"], "1971M01"),
        (["1991-01-01", "1991-02-01"], "1991-03-01"),
        (["1991-01-31", "1991-02-28"], "1991-03-31"),
        (["2020-01-01T22:00", "2020-01-01T23:00"], "2020-01-02T00:00"),
        (["2020-01-01 22:00:00", "2020-01-01 22:15:00"], "2020-01-01 22:30:00"),
        (["2020-01-01T00:00:00.250", "2020-01-01T00:00:00.500"], "2020-01-01T00:00:00.750"),
        (["2020-01-01T00:00:00Z", "2020-01-01T01:00:00Z"], "2020-01-01T02:00:00Z"),
        (["2020-01-01 00:00+05:30", "2020-01-01 01:00+05:30"], "2020-01-01 02:00+05:30"),
        (["2020-03-29T01:00:00+01:00", "2020-03-29T03:00:00+02:00"], "2020-03-29T02:00:00+00:00"),
        (["1970", "1971"], "1972"),
    ],
)
def test_text_continues_as_it_was_written(texts, following):
    axis = axis_of_text(*texts)
    assert axis.extend(1).to_labels() == [following]
    again = TimeAxis.from_dict(json.loads(json.dumps(axis.to_dict())))
    assert again.to_labels() == axis.to_labels()


@given(st.integers(1, 9998), st.integers(1, 12), st.integers(2, 30))
def test_month_text_round_trip(year, month, count):
    months = [year * 12 + month - 1 + k for k in range(count)]
    texts = [f"{at // 12:04d}-{at % 12 + 1:02d}" for at in months if at // 12 < 10000]
    parsed = timeaxis.parse_text(texts)
    # Years before 1000 are written without zeros on some systems: then the text is refused, never changed.
    assert parsed is None or TimeAxis(parsed[0], 1, parsed[1]).to_labels() == texts


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        (["1970-Q1", "soon"], DataTypeError, "row 2: 'soon' is no time"),
        (["1970-Q1", "1970Q2"], DataTypeError, "row 2: '1970Q2' is not written like the first time"),
        (["1970-02-28", "1970-02-31"], DataTypeError, "row 2: '1970-02-31' is no time"),
        (["01/02/2020", "02/02/2020"], DataTypeError, "row 1: '01/02/2020' is no time"),
        (["2020-01-01T00:00Z", "2020-01-01T01:00"], DataTypeError, "row 2"),
        ([1990.0, 1990.25], DataTypeError, "row 2: 1990.25 is no whole number"),
        ([True, False], DataTypeError, "bool values are no times"),
        ([1990.0, None], DataError, "1 time.s. missing, the first in row 2"),
        ([object(), 3], DataTypeError, "int, object"),
    ],
)
def test_what_is_no_time_is_refused_by_row(values, error, match):
    with pytest.raises(error, match=match):
        timeaxis.parse_times(pd.Index(values), "column 'when'")


def test_single_row_has_no_next_time_but_learns_it_by_appending():
    axis = axis_of(pd.DatetimeIndex(["2020-01-31"]))
    assert axis.step is None
    with pytest.raises(DataError, match="single row"):
        axis.extend(1)
    with pytest.raises(DataError, match="single row"):
        axis.append(axis)
    joined = axis.append(axis_of(pd.DatetimeIndex(["2020-02-29"])))
    assert joined.extend(1).label(0) == "2020-03-31"


def test_rows_without_times_continue_any_axis():
    axis = axis_of_text("1970-Q3", "1970-Q4").append(TimeAxis.counted(2))
    assert axis.to_labels() == ["1970-Q3", "1970-Q4", "1971-Q1", "1971-Q2"]
    assert list(TimeAxis.counted(2).append(TimeAxis.counted(2)).to_labels()) == [0, 1, 2, 3]


def test_append_refuses_times_of_another_kind():
    naive = axis_of(pd.date_range("2020-01-01", periods=3))
    for other in (naive.index.tz_localize("UTC"), pd.period_range("2020-01-04", periods=2), pd.Index([1, 2])):
        with pytest.raises(DataError, match="have times of dtype"):
            naive.append(axis_of(other))
    elsewhere = axis_of(pd.date_range("2020-01-04", periods=2, tz=BERLIN).tz_convert("UTC"))
    joined = axis_of(pd.date_range("2020-01-01", periods=3, tz=BERLIN)).append(elsewhere)
    assert str(joined.index.tz) == BERLIN


@pytest.mark.parametrize(
    ("freq", "index", "step"),
    [
        ("QS", INDEXES["quarter starts"], pd.offsets.QuarterBegin(startingMonth=1)),
        ("Q", INDEXES["quarterly periods"], 1),
        ("3M", INDEXES["every third period"], 3),
        (5, INDEXES["years"], 5),
    ],
)
def test_given_frequency(freq, index, step):
    assert timeaxis.as_step(freq, index) == step


@pytest.mark.parametrize(
    ("freq", "index", "error"),
    [
        ("nonsense", INDEXES["days"], OptionError),
        ("D", INDEXES["years"], OptionError),
        (1, INDEXES["days"], OptionError),
        ("-1D", INDEXES["days"], OptionError),
        (0, INDEXES["years"], OptionError),
        ("h", INDEXES["quarterly periods"], OptionError),
        (True, INDEXES["years"], OptionTypeError),
        (1.5, INDEXES["years"], OptionTypeError),
    ],
)
def test_frequency_that_does_not_fit_is_refused(freq, index, error):
    with pytest.raises(error, match="freq"):
        timeaxis.as_step(freq, index)


@given(st.integers(-(10**6), 10**6), st.integers(1, 1000), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_integer_step_divides_every_difference(start, unit, jumps):
    values = start + unit * np.concatenate([[0], np.cumsum(jumps)])
    step = timeaxis.infer_step(pd.Index(values))
    positions = timeaxis.step_positions(pd.Index(values), step)
    assert step % unit == 0
    assert list(positions * step + start) == list(values)


def test_off_grid_times_have_no_position():
    days = pd.DatetimeIndex(["2020-01-01", "2020-01-15", "2020-02-01"])
    assert list(timeaxis.step_positions(days, pd.offsets.MonthBegin())) == [0, -1, 1]
    seconds = pd.DatetimeIndex(["2020-01-01 00:00:00", "2020-01-01 00:00:05"]).as_unit("s")
    assert list(timeaxis.step_positions(seconds, pd.offsets.Milli(2500))) == [0, -1]


@pytest.mark.parametrize("content", [{}, {"values": ["x"]}, {"kind": "datetime", "values": [1], "step": None}])
def test_damaged_axis_is_refused(content):
    with pytest.raises(DataError, match="not a time axis"):
        TimeAxis.from_dict(content)


def test_time_zone_without_a_name_is_refused():
    dateutil = pytest.importorskip("dateutil.tz")
    index = pd.date_range("2020-01-01", periods=3, tz=dateutil.tzfile(io.BytesIO(_zone_file())))
    with pytest.raises(DataError, match="time zone"):
        axis_of(index).to_dict()


def _zone_file():
    for folder in zoneinfo.TZPATH:
        path = pathlib.Path(folder) / "Europe" / "London"
        if path.exists():
            return path.read_bytes()
    pytest.skip("no time zone files on this system")
