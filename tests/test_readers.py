import gzip
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedvar_fast._atomic import atomic_write
from fedvar_fast.exceptions import DataError, DataTypeError, FileFormatError, OptionError
from fedvar_fast.panel import Panel
from fedvar_fast.readers import read_panel, write_panel

GOOD = "Date,a,b\n2020-01-01,1,2\n2020-02-01,3,4.5\n2020-03-01,5,-6e-3\n"


def same_values(first, second):
    assert sorted(first.clients) == sorted(second.clients)
    assert first.columns == second.columns
    for name in first:
        assert first[name].values.tobytes() == second[name].values.tobytes()


def test_great_lakes(data_dir, tmp_path):
    panel = read_panel(data_dir / "great_lakes")
    assert panel.clients == ("Illinois", "Indiana", "Michigan", "Ohio", "Wisconsin")
    assert panel.n_rows == dict.fromkeys(panel.clients, 414)
    assert panel.columns[0] == "Revenue_R" and len(panel.columns) == 12
    assert panel.time_label == "Date"
    assert panel["Ohio"].time.extend(2).to_labels() == ["2025-07-01", "2025-08-01"]
    frame = pd.read_csv(data_dir / "great_lakes" / "Ohio.csv", index_col=0)
    assert np.array_equal(panel["Ohio"].values, frame.to_numpy())
    write_panel(panel, tmp_path / "out")
    again = read_panel(tmp_path / "out")
    same_values(panel, again)
    assert again["Ohio"].time.to_labels() == panel["Ohio"].time.to_labels()


def test_macro_has_quarters_and_its_own_lengths(data_dir):
    panel = read_panel(str(data_dir / "macro" / "*.csv"))
    assert panel.clients == ("AUS", "CAN", "DEU", "DNK", "KOR", "NOR", "SWE", "USA")
    assert len(panel.columns) == 25
    assert (min(panel.n_rows.values()), max(panel.n_rows.values())) == (76, 216)
    assert panel["USA"].time.kind == "period"
    assert panel["USA"].time.extend(1).to_labels() == ["2024-Q1"]


def test_one_state_alone_is_one_client(data_dir):
    panel = read_panel(data_dir / "states" / "New_York.csv", columns=["Sales_R", "Revenue_R"])
    assert panel.clients == ("New_York",)
    assert panel.columns == ("Sales_R", "Revenue_R")
    assert panel["New_York"].time.labels == "%Y-%m-%d"


@pytest.mark.parametrize("form", ["plain", "bom", "semicolons", "tabs", "gzip", "windows", "quoted", "blank lines"])
def test_forms_of_csv(tmp_path, form):
    text = {
        "bom": "\ufeff" + GOOD,
        "semicolons": GOOD.replace(",", ";"),
        "tabs": GOOD.replace(",", "\t"),
        "windows": GOOD.replace("\n", "\r\n"),
        "quoted": GOOD.replace("Date,a,b", '"Date","a","b"'),
        "blank lines": GOOD.replace("2020-02", "\n2020-02") + "\n\n",
    }.get(form, GOOD)
    file = tmp_path / ("A.csv.gz" if form == "gzip" else "A.csv")
    file.write_bytes(gzip.compress(text.encode()) if form == "gzip" else text.encode())
    panel = read_panel(tmp_path)
    assert panel.clients == ("A",)
    assert panel.columns == ("a", "b")
    assert panel.time_label == "Date"
    assert panel["A"].values.tolist() == [[1, 2], [3, 4.5], [5, -6e-3]]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"Date,a\n", "only a header"),
        (b"Date,a\n2020-01-01,1\n2020-02-01,1,2\n", r"line 3 has 3 field\(s\), the header has 2"),
        (b"Date,a,b\n2020-01-01,1,2\n\n2020-02-01,1\n", r"line 4 has 2 field\(s\), the header has 3"),
        (b"Date,a,a\n2020-01-01,1,2\n", "given twice: 'a'"),
        (b"a\n1\n\n3\n", "line 3 is empty"),
        ("Date,ä\n2020-01-01,1\n".encode("latin-1"), "not UTF-8"),
        (b"PK\x03\x04\0\0\0\n", "binary"),
        (b"\x1f\x8b\x08\x00", "not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, content, match):
    file = tmp_path / "bad.csv"
    file.write_bytes(content)
    with pytest.raises(FileFormatError, match=match) as caught:
        read_panel(tmp_path)
    assert "bad.csv" in str(caught.value)


def test_broken_gzip_and_parquet_are_named(tmp_path):
    (tmp_path / "bad.csv.gz").write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(FileFormatError, match=r"bad\.csv\.gz"):
        read_panel(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(FileFormatError, match=r"bad\.parquet"):
        read_panel(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("4.5", '"4,5"', r"client 'A', column 'b', row 2 \(2020-02-01\): '4,5' is text.*decimal point"),
        ("4.5", '"1,234.5"', r"row 2 .*'1,234.5' is text"),
        ("4.5", "n.a.", r"row 2 .*'n.a.' is text, not a number$"),
    ],
)
def test_text_in_csv_is_shown(tmp_path, old, new, match):
    (tmp_path / "A.csv").write_text(GOOD.replace(old, new))
    with pytest.raises(DataTypeError, match=match):
        read_panel(tmp_path)


@pytest.mark.parametrize(("new", "what"), [("", "missing"), ("NA", "missing"), ("inf", "infinite")])
def test_missing_and_infinite_in_csv(tmp_path, new, what):
    (tmp_path / "A.csv").write_text(GOOD.replace("4.5", new))
    with pytest.raises(DataError, match=rf"client 'A', column 'b', row 2 \(2020-02-01\): the value is {what}"):
        read_panel(tmp_path)


def test_long_file(tmp_path):
    rows = [f"{name},2020-0{month}-01,{month}\n" for month in (1, 2, 3) for name in ("NA", "007", "x")]
    (tmp_path / "long.csv").write_text("unique_id,ds,y\n" + "".join(rows))
    panel = read_panel(tmp_path / "long.csv")
    assert panel.clients == ("NA", "007", "x")
    assert panel["007"].values.tolist() == [[1], [2], [3]]
    (tmp_path / "long.csv").write_text("who,month,y,z\n" + "".join(row.replace("\n", ",text\n") for row in rows))
    assert read_panel(tmp_path / "long.csv", client="who", columns=["y"]).clients == panel.clients
    (tmp_path / "other.csv").write_text(GOOD)
    with pytest.raises(OptionError, match="one long file"):
        read_panel(tmp_path, client="who")


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"when": pd.date_range("2020", periods=3, tz="Europe/Berlin"), "a": [1.5, 2, 3]})
    frame.to_parquet(tmp_path / "one.parquet")
    frame.set_index("when").to_parquet(tmp_path / "two.parquet")
    panel = read_panel(tmp_path)
    same_values(panel, read_panel(tmp_path, columns=["a"]))
    assert panel.clients == ("one", "two")
    assert str(panel["two"].time.index.tz) == "Europe/Berlin"
    assert panel.frame_kind == "pandas"


def test_folders(tmp_path):
    with pytest.raises(FileFormatError, match="no such file"):
        read_panel(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match=r"no \.csv"):
        read_panel(tmp_path)
    with pytest.raises(FileFormatError, match=r"no \.csv"):
        read_panel(tmp_path / "*.csv")
    for name in ("b.csv", "a.csv", "C.csv", ".hidden.csv", "notes.txt"):
        (tmp_path / name).write_text(GOOD)
    assert read_panel(tmp_path).clients == ("C", "a", "b")
    with pytest.raises(FileFormatError, match=r"notes\.txt"):
        read_panel(tmp_path / "notes.txt")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(GOOD.encode()))
    with pytest.raises(FileFormatError, match="two files for the client 'a'"):
        read_panel(tmp_path)
    with pytest.raises(DataError, match=r"b\.csv: no column 'zz'"):
        read_panel(tmp_path / "b.csv", columns=["zz"])


FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(FLOATS, min_size=2, max_size=2), min_size=1, max_size=6), st.booleans())
def test_round_trip_is_exact(tmp_path, rows, dated):
    values = np.array(rows)
    panel = Panel.from_arrays({"x": values, "y.csv": values[::-1]}, columns=['odd "name', "b,c"])
    if dated:
        times = pd.date_range("2020-01-31", periods=len(rows), freq="ME")
        frames = {name: pd.DataFrame(panel[name].values, times, list(panel.columns)) for name in panel}
        panel = Panel.from_frames(frames, freq="ME")
    write_panel(panel, tmp_path / "out", overwrite=True)
    again = read_panel(tmp_path / "out", freq="ME" if dated else None)
    same_values(panel, again)
    assert again["x"].time.has_times == dated
    assert [str(time)[:10] for time in again["x"].time.index] == [str(time)[:10] for time in panel["x"].time.index]


def test_missing_values_round_trip(tmp_path):
    panel = Panel.from_arrays({"x": [[1.0], [np.nan], [3.0]]}, missing="drop")
    write_panel(panel, tmp_path)
    again = read_panel(tmp_path, missing="drop")
    np.testing.assert_array_equal(again["x"].values, panel["x"].values)


@pytest.mark.parametrize("freq", ["W", "Q-MAR", "D", "Y", "h"])
def test_periods_are_written_as_times(tmp_path, freq):
    frame = pd.DataFrame({"a": [1.0, 2, 3]}, pd.period_range("2020-01-01", periods=3, freq=freq))
    panel = Panel.from_frames({"x": frame})
    write_panel(panel, tmp_path)
    assert list(read_panel(tmp_path)["x"].time.index) == list(frame.index.to_timestamp())


def test_writing_does_not_overwrite_and_is_all_or_nothing(tmp_path, monkeypatch):
    panel = Panel.from_arrays({"x": np.ones((3, 1)), "y": np.ones((3, 1))})
    paths = write_panel(panel, tmp_path)
    assert [path.name for path in paths] == ["x.csv", "y.csv"]
    with pytest.raises(OptionError, match="overwrite=True"):
        write_panel(panel, tmp_path)
    before = [path.read_bytes() for path in paths]
    other = Panel.from_arrays({"x": np.zeros((3, 1)), "y": np.zeros((3, 1))})
    calls = []

    def fail_at_the_second(descriptor):
        calls.append(descriptor)
        if len(calls) > 2:
            raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail_at_the_second)
    with pytest.raises(OSError, match="disk full"):
        write_panel(other, tmp_path, overwrite=True)
    monkeypatch.undo()
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "y.csv"]


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "CON", "nul.txt", "end.", "a:b", "x" * 300, "line\nbreak"])
def test_names_that_are_no_file_names(tmp_path, name):
    panel = Panel.from_arrays({name: np.ones((3, 1))})
    with pytest.raises(DataError, match="cannot be the name of a file"):
        write_panel(panel, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_that_differ_in_case_only(tmp_path):
    with pytest.raises(DataError, match="same file"):
        write_panel(Panel.from_arrays({"a": np.ones((3, 1)), "A": np.ones((3, 1))}), tmp_path)


def test_atomic_write_keeps_the_old_file_on_failure(tmp_path):
    path = tmp_path / "file"
    with atomic_write(path) as stream:
        stream.write(b"old")
    with pytest.raises(RuntimeError), atomic_write(path, "w", encoding="utf-8") as stream:
        stream.write("new")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OptionError), atomic_write(path, "a"):
        pass
    link = tmp_path / "link"
    link.symlink_to(path)
    with atomic_write(link, "w", encoding="utf-8", newline="") as stream:
        stream.write("new\n")
    assert link.is_symlink() and path.read_bytes() == b"new\n"
