import decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.panel import Panel, as_panel, build_frame
from fedvar_fast.readers import read_panel

KINDS = ["pandas", "polars", "pyarrow"]


@pytest.fixture(name="kind", params=KINDS)
def _kind(request):
    if request.param != "pandas":
        pytest.importorskip(request.param)
    return request.param


def wide(n_rows=4, start="2020-01-01", freq="MS", tz=None):
    times = pd.date_range(start, periods=n_rows, freq=freq, tz=tz)
    return pd.DataFrame({"ds": times, "a": np.arange(n_rows) * 1.5, "b": np.arange(n_rows) ** 2})


def same(first, second):
    assert first.clients == second.clients
    assert first.columns == second.columns
    for name in first:
        assert np.array_equal(first[name].values, second[name].values, equal_nan=True)
        assert list(first[name].time.index) == list(second[name].time.index)
        assert first[name].time.step == second[name].time.step


def check_invariants(panel):
    for name, series in panel.items():
        assert series.name == name
        assert series.values.dtype == np.float64 and series.values.flags.c_contiguous
        assert not series.values.flags.writeable
        assert (
            series.values.shape
            == (len(series.time), len(panel.columns))
            == (panel.n_rows[name], panel[name].values.shape[1])
        )


@pytest.mark.parametrize("tz", [None, "Europe/Berlin"])
@pytest.mark.parametrize("freq", ["MS", "ME", "D", "h"])
def test_frames_of_every_kind_round_trip(kind, tz, freq):
    reference = Panel.from_frames({"x": wide(tz=tz, freq=freq), "y": wide(6, tz=tz, freq=freq)})
    frames = {
        name: build_frame({column: pd.Index(frame[column]) for column in frame}, kind)
        for name, frame in {"x": wide(tz=tz, freq=freq), "y": wide(6, tz=tz, freq=freq)}.items()
    }
    panel = Panel.from_frames(frames)
    check_invariants(panel)
    same(panel, reference)
    assert (panel.frame_kind, panel.client_label, panel.time_label) == (kind, "client", "ds")
    assert isinstance(panel.to_long(), type(frames["x"]))
    same(Panel.from_frames(panel.to_frames()), panel)
    same(as_panel(panel.to_long()), panel)
    assert str(panel["x"].time.index.tz) == str(tz)


def test_dates_and_text_are_given_back_as_dates_and_text(kind):
    dates = [pd.Timestamp(2020, month, 1).date() for month in (1, 2, 3)]
    panel = as_panel(build_frame({"when": dates, "a": [1, 2, 3]}, kind))
    assert panel["series"].time.extend(1).to_labels() == [pd.Timestamp(2020, 4, 1).date()]
    same(as_panel(panel.to_frames()["series"]), panel)
    panel = as_panel(build_frame({"when": ["1970-Q1", "1970-Q2", "1970-Q3"], "a": [1, 2, 3]}, kind))
    assert panel.time_label == "when"
    assert panel["series"].time.extend(1).to_labels() == ["1970-Q4"]


def test_great_lakes_through_long_frames(data_dir, kind):
    panel = read_panel(data_dir / "great_lakes")
    long = panel.to_long()
    given_frame = build_frame({name: long[name].tolist() for name in long}, kind)
    again = Panel.from_long(given_frame, client="client", time="Date")
    same(again, panel)
    check_invariants(again)


def test_the_time_may_be_in_a_pandas_index():
    frame = wide().set_index("ds")
    for index in (frame.index, frame.index.to_period("M"), pd.Index(range(1990, 1994), name="year")):
        panel = as_panel(frame.set_axis(index))
        assert panel.columns == ("a", "b")
        assert list(panel["series"].time.index) == list(index)
    panel = as_panel(frame.set_axis(pd.Index(["1970-Q1", "1970-Q2", "1970-Q3", "1970-Q4"])))
    assert panel["series"].time.kind == "period"
    assert as_panel(frame.rename_axis("when"), time="when").time_label == "when"
    assert not as_panel(frame.set_axis([7, 1, 3, 9]))["series"].time.has_times
    long = pd.concat({"x": frame, "y": frame}, names=["unique_id"])
    assert Panel.from_long(long).clients == ("x", "y")
    with pytest.raises(DataTypeError, match="reset_index"):
        Panel.from_frames({"x": long})


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 4), st.integers(2, 12))
def test_order_of_rows_and_columns_does_not_matter(random, n_clients, n_rows):
    frames = {f"c{k}": wide(n_rows + k).assign(b=np.arange(n_rows + k) * k + 0.1) for k in range(n_clients)}
    reference = Panel.from_frames(frames)
    shuffled = {}
    for name, frame in frames.items():
        rows, columns = list(range(len(frame))), list(frame.columns)
        random.shuffle(rows)
        random.shuffle(columns)
        shuffled[name] = frame.iloc[rows][columns]
    before = {name: frame.copy() for name, frame in shuffled.items()}
    panel = Panel.from_frames(shuffled)
    check_invariants(panel)
    same(panel.reorder(columns=reference.columns), reference)
    for name, frame in shuffled.items():
        pd.testing.assert_frame_equal(frame, before[name])
    long = pd.concat([frame.assign(unique_id=name) for name, frame in shuffled.items()])
    rows = list(range(len(long)))
    random.shuffle(rows)
    mixed = Panel.from_long(long.iloc[rows])
    assert mixed.clients == tuple(dict.fromkeys(long.iloc[rows]["unique_id"]))
    same(mixed.reorder(reference.columns, reference.clients), reference)


def test_arrays_are_not_copied_when_they_need_not_be(tmp_path):
    array = np.random.default_rng(0).standard_normal((50, 3))
    panel = Panel.from_arrays({"x": array, "y": array[:20]})
    assert np.shares_memory(panel["x"].values, array) and array.flags.writeable
    check_invariants(panel)
    assert panel.columns == ("y1", "y2", "y3")
    assert np.shares_memory(panel.slice(5, 10)["x"].values, array)
    array.tofile(tmp_path / "array")
    mapped = np.memmap(tmp_path / "array", mode="r", shape=array.shape)
    assert isinstance(Panel.from_arrays({"x": mapped})["x"].values, np.memmap)


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda a: a[::-1][::-1],
        lambda a: a.astype(">f8"),
        lambda a: a.astype(np.float32),
        lambda a: a.astype(np.float16),
        lambda a: a.astype(np.int8),
        lambda a: a.astype(np.uint64),
        lambda a: a.tolist(),
        lambda a: a.astype(object),
        lambda a: np.vectorize(decimal.Decimal)(a),
        np.ma.asarray,
        lambda a: a.astype(np.longdouble),
    ],
)
def test_numbers_of_every_kind(change):
    array = np.arange(12.0).reshape(4, 3)
    panel = Panel.from_arrays({"x": change(array)})
    check_invariants(panel)
    assert np.array_equal(panel["x"].values, array)


def test_booleans_and_missing_of_every_kind(kind):
    data = {"a": [True, False, None], "b": [1, None, 3], "c": [None, None, None], "d": [1.5, float("nan"), 2]}
    frame = build_frame(data, kind)
    values = as_panel(frame, missing="drop")["series"].values
    expected = [[1, 1, np.nan, 1.5], [0, np.nan, np.nan, np.nan], [np.nan, 3, np.nan, 2]]
    np.testing.assert_array_equal(values, expected)
    with pytest.raises(DataError, match=r"column 'c', row 1: the value is missing \(6 such"):
        as_panel(frame)


def test_what_a_panel_can_be_made_of():
    array = np.arange(8.0).reshape(4, 2)
    assert as_panel(array).clients == ("series",)
    assert as_panel(array[:, 0]).columns == ("y1",)
    assert as_panel({"x": array[:, 0].tolist()}).n_rows == {"x": 4}
    assert as_panel({"x": array}, columns=["p", "q"]).columns == ("p", "q")
    panel = as_panel({"x": array, 7: array})
    assert panel.clients == ("x", "7") and as_panel(panel) is panel
    series = pd.Series([1.0, 2, 4], pd.period_range("2020Q1", periods=3, freq="Q"), name="gdp")
    assert as_panel(series).columns == ("gdp",) and as_panel({"x": series})["x"].time.kind == "period"
    long = pd.concat([wide().assign(client="x"), wide().assign(client="y")])
    assert as_panel(long).client_label == "client"
    assert as_panel(long.rename(columns={"client": "who"}), client="who").clients == ("x", "y")
    for wrong in (None, 3, "folder", object()):
        with pytest.raises(DataTypeError):
            as_panel(wrong)
    with pytest.raises(DataTypeError, match="both frames and arrays"):
        as_panel({"x": array, "y": wide()})


def test_polars_series_and_lazy_frames():
    polars = pytest.importorskip("polars")
    assert as_panel(polars.Series("gdp", [1.0, 2, 4])).columns == ("gdp",)
    with pytest.raises(DataTypeError, match="collect"):
        as_panel({"x": polars.LazyFrame({"a": [1.0]})})
    with pytest.raises(DataTypeError, match="collect"):
        as_panel(polars.LazyFrame({"a": [1.0]}))


@pytest.mark.parametrize(
    ("frames", "error", "match"),
    [
        ({}, DataError, "no clients"),
        ({"": wide()}, DataError, "name of a client is empty"),
        (
            {"x": wide(), "y": wide().rename(columns={"b": "c"})},
            DataError,
            "'x' and 'y'.*missing 'b'.*extra 'c'",
        ),
        ({"x": wide().iloc[:0]}, DataError, "'x' has no rows|no rows"),
        ({"x": wide()[["ds"]]}, DataError, "'x': no numeric columns"),
        ({"x": wide().rename(columns={"b": " "})}, DataError, "column 2 of the variables has no name"),
        ({"x": wide().rename(columns={"b": "a"})}, DataError, "'x'.*twice.*'a'"),
        (
            {"x": wide().assign(b=["1", "2", "oops", "4"])},
            DataTypeError,
            r"client 'x', column 'b', row 3 \(2020-03-01\): 'oops' is text",
        ),
        ({"x": wide().assign(b=["1", "2", "3", "4"])}, DataTypeError, r"row 1 .*'1' is text"),
        ({"x": wide().assign(b=1j)}, DataTypeError, "'b'.*complex128"),
        ({"x": wide().assign(b=pd.Timestamp("2020"))}, DataTypeError, "'b'.*datetime64"),
        ({"x": wide().assign(b=[1, 2, [3], 4])}, DataTypeError, r"row 3 .*\[3\] is not a real number"),
        (
            {"x": wide().assign(b=[1, 2, np.inf, np.nan])},
            DataError,
            r"client 'x', column 'b', row 3 \(2020-03-01\): the value is infinite \(2 such.*missing=.drop",
        ),
        ({"x": wide(), "y": wide(tz="UTC")}, DataError, "'x'.*and 'y'.*UTC.*different kinds"),
        ({"x": wide(), "y": wide()[["a", "b"]]}, DataError, "'x'.*and 'y' .none.*different kinds"),
        ({"x": wide(5), "y": wide(freq="QS")}, DataError, "'x'.*and 'y'.*different frequencies"),
        ({"x": np.ones((3, 2))}, DataTypeError, "not ndarray"),
    ],
)
def test_frames_that_cannot_be_used(frames, error, match):
    with pytest.raises(error, match=match):
        Panel.from_frames(frames)


@pytest.mark.parametrize(
    ("arrays", "options", "error", "match"),
    [
        ({"x": np.ones((3, 2, 2))}, {}, DataError, "shape"),
        ({"x": np.ones((3, 0))}, {}, DataError, "no columns"),
        ({"x": np.ones((0, 2))}, {}, DataError, "no rows"),
        ({"x": np.ones((3, 2)), "y": np.ones((3, 3))}, {}, DataError, "different columns"),
        ({"x": np.ones((3, 2))}, {"columns": ["a"]}, DataError, "columns= names 1"),
        ({"x": np.ones((3, 2))}, {"columns": ["a", "a"]}, DataError, "'a'"),
        ({"x": np.array([["1", "b"]])}, {}, DataTypeError, "column 1, row 1: '1' is text"),
        ({"x": np.ones((3, 2)) * 1j}, {}, DataTypeError, "complex"),
        ({"x": [[1.0], [1.0, 2.0]]}, {}, DataTypeError, "different lengths"),
        ({1: np.ones((3, 2)), "1": np.ones((3, 2))}, {}, DataError, "given twice: '1'"),
        ({"x": [[1.0], [np.inf]]}, {"missing": "drop"}, DataError, "row 2: the value is infinite"),
        ({"x": [[1.0]]}, {"missing": "fill"}, OptionError, "missing must be"),
    ],
)
def test_arrays_that_cannot_be_used(arrays, options, error, match):
    with pytest.raises(error, match=match):
        Panel.from_arrays(arrays, **options)


def test_duplicated_times_are_named_with_their_rows():
    frame = pd.concat([wide(), wide(2)])
    with pytest.raises(DataError, match=r"client 'x'.*2020-01-01 in rows 1, 5; 2020-02-01 in rows 2, 6"):
        Panel.from_frames({"x": frame})
    long = pd.concat([wide().assign(unique_id="y"), wide().assign(unique_id="x"), wide(1).assign(unique_id="x")])
    with pytest.raises(DataError, match=r"client 'x'.*2020-01-01 in rows 5, 9"):
        Panel.from_long(long)


def test_rows_in_messages_are_those_of_the_user():
    frame = wide().iloc[::-1].reset_index(drop=True)
    frame.loc[0, "a"] = np.nan
    with pytest.raises(DataError, match=r"client 'x', column 'a', row 1 \(2020-04-01\)"):
        Panel.from_frames({"x": frame})
    long = pd.concat([wide().assign(unique_id="y"), frame.assign(unique_id="x")])
    with pytest.raises(DataError, match=r"client 'x', column 'a', row 5 \(2020-04-01\)"):
        Panel.from_long(long)
    long["a"] = ["0"] * 6 + ["?", "0"]
    with pytest.raises(DataTypeError, match=r"client 'x', column 'a', row 7 \(2020-02-01\): '\?'"):
        Panel.from_long(long)


@pytest.mark.parametrize(
    ("times", "first"),
    [
        (pd.date_range("2020-01-31", periods=12, freq="ME"), "2020-03-31, 2020-05-31, 2020-06-30"),
        (
            pd.date_range("2020-03-28 22:00", periods=12, freq="h", tz="Europe/Berlin"),
            r"2020-03-29 00:00:00\+01:00, 2020-03-29 03",
        ),
        (pd.period_range("2020Q1", periods=12, freq="Q"), "2020Q3, 2021Q1, 2021Q2"),
        (pd.RangeIndex(1990, 2002, name="year"), "1992, 1994, 1995"),
    ],
)
def test_gaps_are_named_or_become_missing_rows(times, first):
    kept = [0, 1, 3, 7, 8, 9, 10, 11]
    frame = pd.DataFrame({"a": np.arange(12.0)}, times)
    gappy = {"x": frame.iloc[kept]}
    with pytest.raises(DataError, match=rf"client 'x': 4 time.s. are missing.*{first}.*missing=.drop"):
        Panel.from_frames(gappy)
    panel = Panel.from_frames(gappy, missing="drop")
    check_invariants(panel)
    assert list(panel["x"].time.index) == list(times)
    expected = np.where(np.isin(np.arange(12), kept), np.arange(12.0), np.nan)
    np.testing.assert_array_equal(panel["x"].values[:, 0], expected)


def test_irregular_times_are_not_filled_without_end():
    times = pd.DatetimeIndex(["2020-01-01 00:00:00", "2020-01-01 00:00:00.000001", "2021-01-01"])
    with pytest.raises(DataError, match="too many to be gaps"):
        Panel.from_frames({"x": pd.DataFrame({"a": [1.0, 2, 3]}, times)}, missing="drop")


def test_short_clients_take_the_frequency_of_the_others():
    frames = {"one": wide(1), "two": wide(24).iloc[[0, 2]], "long": wide(24)}
    panel = Panel.from_frames(frames, missing="drop")
    assert panel.n_rows == {"one": 1, "two": 3, "long": 24}
    assert {str(series.time.step) for _, series in panel.items()} == {"<MonthBegin>"}
    with pytest.raises(DataError, match=r"client 'two': 1 time.s. are missing by the frequency MS.*2020-02-01"):
        Panel.from_frames(frames)
    weekdays = {"short": wide(4, "2020-01-06", "B"), "long": wide(20, "2020-01-06", "B")}
    assert Panel.from_frames(weekdays)["short"].time.extend(2).label(1) == "2020-01-13"
    alone = Panel.from_frames({"one": wide(1)}, freq="MS")
    assert alone["one"].time.extend(1).label(0) == "2020-02-01"
    with pytest.raises(DataError, match="not on the grid of frequency MS"):
        Panel.from_frames({"one": wide(1, "2020-01-15", "D")}, freq="MS")
    with pytest.raises(OptionError, match="freq"):
        Panel.from_frames({"one": wide(1)}, freq="nonsense")


def test_time_is_found_by_type_then_name_then_text():
    base = {"a": [1.0, 2, 3]}
    dated = {"year": [1, 2, 4], "t": pd.date_range("2020", periods=3)}
    assert as_panel(pd.DataFrame(base | dated)).time_label == "t"
    named = {"note": ["1990-01", "1990-02", "1990-03"], "YEAR": [1990, 1991, 1992]}
    with pytest.raises(DataTypeError, match=r"'note', row 1 .1990.: '1990-01' is text"):
        as_panel(pd.DataFrame(base | named))
    assert as_panel(pd.DataFrame(base | {"note": ["1990-01", "1990-02", "1990-03"]})).time_label == "note"
    assert not as_panel(pd.DataFrame(base))["series"].time.has_times
    with pytest.raises(DataError, match="no time column 'when'"):
        as_panel(pd.DataFrame(base), time="when")


def test_long_frames_name_what_is_wrong():
    long = wide().assign(unique_id=["x", None, "y", "y"])
    with pytest.raises(DataError, match="no client in row 2"):
        Panel.from_long(long)
    with pytest.raises(DataError, match="no client column 'who'"):
        Panel.from_long(long, client="who")
    numbered = Panel.from_long(wide().assign(unique_id=[7, 7, 3, 3]).sort_values("ds"))
    assert numbered.clients == ("7", "3")


def test_rows_clients_and_columns_can_be_chosen():
    panel = Panel.from_frames({"x": wide(6), "y": wide(4), "z": wide(5)})
    assert panel.head(2).n_rows == {"x": 2, "y": 2, "z": 2}
    assert panel.tail(5).n_rows == {"x": 5, "y": 4, "z": 5}
    assert panel.tail(0).n_rows == {"x": 0, "y": 0, "z": 0}
    assert panel.slice(1, -1)["y"].time.label(0) == "2020-02-01"
    taken = panel.take({"z": slice(0, 3), "x": slice(2, None)})
    assert taken.n_rows == {"x": 4, "z": 3}
    assert taken["z"].time.extend(1).label(0) == "2020-04-01"
    chosen = panel.reorder(columns=["b", "a"], clients=["z", "x"])
    assert chosen.clients == ("z", "x") and chosen.columns == ("b", "a")
    assert np.array_equal(chosen["x"].values, panel["x"].values[:, ::-1])
    check_invariants(chosen)
    for options in ({"columns": ["c"]}, {"clients": ["x", "x"]}, {"columns": []}):
        with pytest.raises(DataError, match="cannot choose"):
            panel.reorder(**options)
    with pytest.raises(DataError, match="no client 'q'; the clients are 'x', 'y', 'z'"):
        panel["q"]
    with pytest.raises(DataError, match="no client 'q'"):
        panel.take({"q": slice(None)})
    assert list(panel) == ["x", "y", "z"] and len(panel) == 3 and "y" in panel and "q" not in panel
    assert repr(panel) == "<Panel: 3 client(s), 2 column(s), 4 to 6 rows: 'x', 'y', 'z'>"


def test_names_of_variables_win_over_those_of_client_and_time():
    panel = Panel.from_arrays({"x": np.ones((2, 2))}, columns=["time", "client"])
    assert list(panel.to_long().columns) == ["client_", "time_", "time", "client"]
    assert list(panel.to_frames()["x"].columns) == ["time", "client"]


def test_kinds_of_frames_are_known_ones():
    with pytest.raises(OptionError, match="kind of frame"):
        build_frame({"a": [1]}, "spark")
