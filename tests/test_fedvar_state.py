"""FedVAR over its life: updates, new clients, predictions, model files (the second half of test_fedvar.py)."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pytest
from oracles import lasso_rows, stable_series

import fedvar_fast as fv
from fedvar_fast import FedVAR, Privacy, modelfile
from fedvar_fast.exceptions import DataError, ModelFileError, OptionError

NAMES = ("west", "east", "north")
CUT = {"west": 60, "east": 70, "north": 85}


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    scale, mean = np.array([1.0, 5.0, 0.1]), np.array([0.0, 30.0, -2.0])
    return {n: stable_series(rng, t, 3, 2)[0] * scale + mean for n, t in zip(NAMES, (90, 80, 120), strict=True)}


def new_model(**changes):
    return FedVAR(**({"order": 2, "rank": 2, "l1_penalty": 0.05} | changes))


@pytest.fixture
def model(series):
    return new_model().fit(series)


def head(series):
    return {name: y[: CUT[name]] for name, y in series.items()}


def tail(series):
    return {name: y[CUT[name] :] for name, y in series.items()}


def same_model(got, want, tol=1e-9):
    np.testing.assert_allclose(got.A0_, want.A0_, atol=tol)
    for name in want.clients_:
        np.testing.assert_allclose(got.coef_[name], want.coef_[name], atol=tol)
        for one in ("center_", "scale_", "noise_cov_"):
            np.testing.assert_allclose(getattr(got, one)[name], getattr(want, one)[name], rtol=tol, atol=tol)
    pd.testing.assert_frame_equal(got.forecast(4), want.forecast(4), rtol=1e-8)


# -- updates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"center": False}, {"scale": False}, {"shared_solver": "exact", "ridge": 0.1}])
def test_update_is_refit(series, options):
    updated = new_model(**options).fit(head(series)).update(tail(series))
    same_model(updated, new_model(**options).fit(series))


def test_update_row_by_row(series):
    model = new_model(n_rounds=20).fit(head(series))
    for row in range(6):
        model.update({name: y[row : row + 1] for name, y in tail(series).items()})
    same_model(model, new_model(n_rounds=20).fit({n: y[: CUT[n] + 6] for n, y in series.items()}))


def test_update_of_some_clients(series):
    model = new_model().fit(head(series)).update({"east": tail(series)["east"]})
    same_model(model, new_model().fit(head(series) | {"east": series["east"]}))
    assert model.clients_ == NAMES


@pytest.mark.parametrize("saves", [1, 3])
def test_update_after_loading(series, tmp_path, saves):
    model = new_model().fit(head(series))
    pieces = {name: np.array_split(y, saves) for name, y in tail(series).items()}
    for i in range(saves):
        model.save(tmp_path / "model")
        model = fv.load(tmp_path / "model").update({name: parts[i] for name, parts in pieces.items()})
    same_model(model, new_model().fit(series))


def test_update_with_dates_must_continue(series):
    def frame(y, start):
        dates = pd.date_range("2020-01-01", periods=start + len(y), freq="MS")[start:]
        return pd.DataFrame(y, columns=list("abc")).assign(date=dates)

    y = series["west"]
    model = new_model(rank=1).fit({"west": frame(y[:60], 0)})
    before = model.forecast(2)
    for start in (59, 61):
        with pytest.raises(DataError, match=r"'west'.*continue"):
            model.update({"west": frame(y[60:], start)})
    with pytest.raises(DataError, match="columns"):
        model.update({"west": frame(y[60:], 60).rename(columns={"a": "z"})})
    pd.testing.assert_frame_equal(model.forecast(2), before)
    # Columns are matched by name.
    model.update({"west": frame(y[60:], 60)[["date", "c", "a", "b"]]})
    same_model(model, new_model(rank=1).fit({"west": frame(y, 0)}))


def test_a_refused_update_changes_nothing(series, model):
    before, a0 = model.forecast(2), model.A0_
    for rows in ({"south": series["west"]}, {"west": series["west"][:, :2]}, {"west": np.full((2, 3), np.nan)}):
        with pytest.raises(DataError):
            model.update(rows)
    model.set_params(rank=7)
    with pytest.raises(OptionError, match="rank"):
        model.update({"west": series["west"][:2]})
    assert model.A0_ is a0
    pd.testing.assert_frame_equal(model.forecast(2), before)


def test_a_changed_order_is_refused_until_the_next_fit(series, model):
    # The moments are those of the order of the fit; a model that says otherwise must not come of it.
    model.set_params(order=1)
    with pytest.raises(OptionError, match="order"):
        model.update({"west": series["west"][:3]})
    with pytest.raises(OptionError, match="order"):
        model.add_client("south", series["west"])


# -- new clients, predictions --------------------------------------------------------------------------------------


def test_add_client_is_stage_two_alone(series):
    model = new_model(local_tol=1e-12).fit({name: series[name] for name in ("west", "east")})
    a0, coef = model.A0_, model.coef_["west"]
    y = series["north"]
    assert model.add_client("north", y) is model
    assert model.A0_ is a0 and model.coef_["west"] is coef and model.clients_ == ("west", "east", "north")
    z = (y - y.mean(axis=0)) / y.std(axis=0)
    x = np.hstack([z[1:-1], z[:-2]])
    np.testing.assert_allclose(model.deltas_["north"], lasso_rows(z[2:], x, 0.05, a0), atol=1e-6)
    assert set(model.forecast(2)["client"]) == set(NAMES)
    assert "north" in model.summary() and model.noise_cov_["north"].shape == (3, 3)
    with pytest.raises(DataError, match="already"):
        model.add_client("north", y)
    with pytest.raises(DataError, match="columns"):
        model.add_client("south", y[:, :2])


def test_predict_takes_other_rows_and_column_orders(series):
    frame = pd.DataFrame(series["west"], columns=list("abc"))
    model = new_model(rank=1).fit({"west": frame})
    inside = model.predict({"west": frame})
    assert len(inside) == 88 and list(inside.columns) == ["client", "time", "a", "b", "c"]
    turned = model.predict({"west": frame[["c", "b", "a"]]})
    pd.testing.assert_frame_equal(turned, inside)
    part = model.predict({"west": frame.iloc[:10]})
    np.testing.assert_array_equal(part[["a", "b", "c"]], inside[["a", "b", "c"]].iloc[:8])
    np.testing.assert_allclose(model.predict({"west": frame.iloc[-2:]})[["a", "b", "c"]].shape, (0, 3))
    with pytest.raises(DataError, match="unknown"):
        model.predict({"east": frame})
    for call in (model.coef_original, model.intercept_original):
        with pytest.raises(DataError, match="unknown"):
            call("east")


def test_missing_rows_use_only_real_lag_pairs(series):
    holed = {name: y.copy() for name, y in series.items()}
    holed["east"][30, 1] = np.nan
    with pytest.raises(DataError, match="missing"):
        new_model().fit(holed)
    model = new_model().fit(fv.Panel.from_arrays(holed, missing="drop"))
    assert np.isfinite(model.A0_).all() and len(model.forecast(1)) == 3
    holed["east"][-1, 1] = np.nan
    model = new_model().fit(fv.Panel.from_arrays(holed, missing="drop"))
    with pytest.raises(DataError, match=r"'east'.*'y2'"):
        model.forecast(1)


# -- model files ---------------------------------------------------------------------------------------------------


def frames(series, kind):
    out = {}
    for name, y in series.items():
        dates = [str(day)[:10] for day in pd.date_range("2020-01-01", periods=len(y), freq="MS")]
        columns = {"date": dates} | {c: y[:, i] for i, c in enumerate("abc")}
        out[name] = pd.DataFrame(columns) if kind == "pandas" else pl.DataFrame(columns)
    return out


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("moments", [True, False])
def test_a_loaded_model_forecasts_the_same_bits(series, tmp_path, kind, moments):
    data = frames(series, kind)
    model = new_model(clip=3.0, l1_penalty=dict.fromkeys(NAMES, 0.1), random_state=np.int64(3)).fit(data)
    model.save(tmp_path / "model", moments=moments)
    loaded = fv.load(tmp_path / "model")
    assert type(loaded) is FedVAR and loaded.get_params() == model.get_params()
    for level in (None, [80, 95]):
        assert loaded.forecast(6, level=level).equals(model.forecast(6, level=level))
    assert loaded.predict(data).equals(model.predict(data))
    assert loaded.summary() == model.summary()
    np.testing.assert_array_equal(loaded.A0_, model.A0_)
    assert loaded.gap_ == model.gap_ and loaded.n_rounds_ == model.n_rounds_ and loaded.step_ == model.step_
    loaded.save(tmp_path / "again", moments=moments)
    assert fv.load(tmp_path / "again").forecast(2).equals(model.forecast(2))


def test_an_array_as_init_and_privacy_are_kept(series, tmp_path):
    init = np.random.default_rng(1).standard_normal((3, 6))
    model = new_model(init=init, n_rounds=3, privacy=Privacy(2.0, 1e-5, kappa=0.1, calibration="paper")).fit(series)
    model.save(tmp_path / "model")
    loaded = fv.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.init, init)
    assert loaded.privacy == model.privacy
    assert loaded.privacy_report_.text() == model.privacy_report_.text()
    more = loaded.update({"west": series["west"][:3]}).privacy_report_
    for name in NAMES:
        assert len(more.ledger.releases(name)) == 2 * len(model.privacy_report_.ledger.releases(name))


def test_a_model_without_moments_forecasts_but_does_not_update(series, tmp_path, model):
    model.save(tmp_path / "full")
    model.save(tmp_path / "lean", moments=False)
    assert (tmp_path / "lean").stat().st_size < (tmp_path / "full").stat().st_size
    lean = fv.load(tmp_path / "lean")
    with pytest.raises(DataError, match="without its moments"):
        lean.update({"west": series["west"][:3]})


def test_a_model_without_moments_takes_a_new_client(series, tmp_path, model):
    # Stage II needs the new client's moments only: intervals and saving must go on to work for the old ones.
    model.save(tmp_path / "lean", moments=False)
    lean = fv.load(tmp_path / "lean").add_client("south", series["west"])
    intervals = lean.forecast(2, level=90)
    old = intervals[intervals["client"].isin(NAMES)].reset_index(drop=True)
    pd.testing.assert_frame_equal(old, model.forecast(2, level=90))
    lean.save(tmp_path / "again", moments=False)
    assert set(fv.load(tmp_path / "again").clients_) == {*NAMES, "south"}


def written(path, tmp_path, change):
    """A copy of a model file with header and arrays changed by a function."""
    header, arrays = modelfile.read_model(path)
    change(header, arrays)
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    with open(tmp_path / "changed", "wb") as stream:
        np.savez(stream, header=text, **arrays)
    return tmp_path / "changed"


def test_foreign_and_newer_files(tmp_path, model):
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="no model file"):
        fv.load(tmp_path / "nothing")
    with pytest.raises(ModelFileError):
        fv.load(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("client,a,b\n1,2,3\n")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.savez(tmp_path / "pickle.npz", header=np.array([{}], dtype=object))
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("header.npy", "nonsense")
        archive.writestr("readme", "text")
    for name in ("empty", "text", "other.npz", "pickle.npz", "zip"):
        with pytest.raises(ModelFileError):
            fv.load(tmp_path / name)
    changes = {
        "format 2": lambda header, arrays: header.update(format_version=2),
        "'Foreign'": lambda header, arrays: header.update({"class": "Foreign"}),
        "options": lambda header, arrays: header["params"].update(magic=1),
        "no model file": lambda header, arrays: header.update(magic="other"),
        "damaged": lambda header, arrays: header.pop("clients"),
        "wrong": lambda header, arrays: arrays.pop("client/0/moments/tail"),
    }
    for text, change in changes.items():
        with pytest.raises(ModelFileError, match=text):
            fv.load(written(tmp_path / "model", tmp_path, change))


def test_a_plain_array_file_is_no_model(tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    with pytest.raises(ModelFileError):
        fv.load(tmp_path / "array.npy")


def test_impossible_content_is_a_damaged_file(tmp_path, series):
    model = new_model(n_rounds=1, privacy=Privacy(2.0, 1e-5, kappa=0.1, calibration="paper")).fit(series)
    model.save(tmp_path / "model")
    changes = [
        lambda header, arrays: header["params"]["privacy"].update(epsilon=-1.0),
        lambda header, arrays: arrays.update({"client/0/moments/counts": np.arange(3)}),
    ]
    for change in changes:
        with pytest.raises(ModelFileError):
            fv.load(written(tmp_path / "model", tmp_path, change))


def test_truncated_and_corrupted_files(tmp_path, model):
    model.save(tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    want = model.forecast(2)
    broken = tmp_path / "broken"
    for share in np.linspace(0.0, 0.999, 25):
        broken.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ModelFileError):
            fv.load(broken)
    rng = np.random.default_rng(2)
    for _ in range(250):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        broken.write_bytes(damaged)
        try:
            loaded = fv.load(broken)
        except ModelFileError:
            continue
        pd.testing.assert_frame_equal(loaded.forecast(2), want)  # a bit that means nothing, such as a date


@pytest.mark.parametrize(
    ("offset", "value"), [(6, 255), (8, 1), (10, 99)], ids=["version needed", "encrypted", "compression method"]
)
def test_a_damaged_directory_entry(tmp_path, model, offset, value):
    model.save(tmp_path / "model")
    content = bytearray((tmp_path / "model").read_bytes())
    content[content.index(b"PK\x01\x02") + offset] = value  # the first entry of the zip's central directory
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ModelFileError):
        fv.load(tmp_path / "model")


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("half way")])
def test_a_failed_save_leaves_nothing_and_keeps_the_old(tmp_path, model, monkeypatch, error):
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()

    def half(stream, **arrays):
        stream.write(b"half a file")
        raise error

    monkeypatch.setattr(np, "savez", half)
    for name in ("model", "new"):
        with pytest.raises(ModelFileError if isinstance(error, OSError) else RuntimeError):
            model.save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == before


def test_a_save_into_nowhere(tmp_path, model):
    with pytest.raises(ModelFileError, match="cannot write"):
        model.save(tmp_path / "no" / "folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelFileError, match="cannot write"):
        model.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"] and not list((tmp_path / "folder").iterdir())
