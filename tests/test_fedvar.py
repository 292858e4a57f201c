"""FedVAR end to end: golden figures, invariances, forecasts, intervals, updates."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from oracles import companion_radius, design, lasso_rows, pool_threads, recursion, stable_series, truncate
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fedvar_fast as fv
from fedvar_fast import FedVAR
from fedvar_fast.exceptions import (
    ConstantColumnWarning,
    ConvergenceWarning,
    DataError,
    OptionError,
    OptionTypeError,
    UnstableModelWarning,
)

NAMES = ("west", "east", "north")


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    scale, mean = np.array([1.0, 5.0, 0.1]), np.array([0.0, 30.0, -2.0])
    return {n: stable_series(rng, t, 3, 2)[0] * scale + mean for n, t in zip(NAMES, (90, 70, 120), strict=True)}


@pytest.fixture(scope="module")
def model(series):
    return FedVAR(order=2, rank=2, l1_penalty=0.05).fit(series)


def values_of(forecast, client):
    return forecast[forecast["client"] == client].drop(columns=["client", "time"]).to_numpy()


# -- golden figures ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(golden_dir):
    stem = golden_dir / "great_lakes_fed"
    with np.load(stem.with_suffix(".npz")) as arrays:
        return json.loads(stem.with_suffix(".json").read_text()), dict(arrays)


@pytest.fixture(scope="module")
def lakes(data_dir, golden):
    return fv.Panel.from_frames(
        {name: pd.read_csv(data_dir / "great_lakes" / f"{name}.csv") for name in golden[0]["clients"]}
    )


def golden_model(setting, **changes):
    options = {"l1_penalty": setting["varpi"], "n_rounds": setting["rounds"], "step": setting["step"]} | changes
    return FedVAR(order=setting["order"], rank=setting["rank"], scale=False, **options)


def test_golden_two_stages(golden, lakes):
    setting, arrays = golden
    fitted = golden_model(setting).fit(lakes)
    np.testing.assert_allclose(fitted.A0_, arrays["A0"], atol=1e-8)
    for name in setting["clients"]:
        np.testing.assert_allclose(fitted.deltas_[name], arrays[f"delta_{name}"], atol=1e-8)
        assert np.abs(fitted.deltas_[name]).sum() == pytest.approx(setting["delta_l1_20iter"][name], abs=1e-8)
        assert np.count_nonzero(fitted.deltas_[name]) == setting["delta_nnz_20iter"][name]
    # The golden history begins after the first round, ours at the start.
    np.testing.assert_allclose(fitted.history_["loss"][[1, -1]], setting["loss_history_first_last"], rtol=1e-8)
    assert len(fitted.history_["loss"]) == 78 and np.all(np.diff(fitted.history_["loss"]) < 0)
    assert np.linalg.norm(fitted.A0_) == pytest.approx(setting["A0_fro"], abs=1e-8)
    assert fitted.n_rounds_ == 77


def test_golden_start_and_step(golden, lakes):
    setting, arrays = golden
    yx = sum(m.yx for m in (fitted_moments(lakes, name) for name in lakes.clients))
    rows = sum(len(lakes[name]) - setting["order"] for name in lakes.clients)
    np.testing.assert_allclose(truncate(2 * setting["step"] * yx / rows, 3), arrays["A0_init"], atol=1e-8)
    given = golden_model(setting, init=arrays["A0_init"]).fit(lakes)
    np.testing.assert_allclose(given.A0_, arrays["A0"], atol=1e-8)
    # The golden step is that of the pooled moments; the safe one averages norms, and is never longer.
    xx = sum(m.xx for m in (fitted_moments(lakes, name) for name in lakes.clients))
    assert rows / (2 * np.linalg.norm(xx, 2)) == pytest.approx(setting["step"], rel=1e-8)
    assert golden_model(setting, step="auto", n_rounds=1).fit(lakes).step_ <= setting["step"]


def fitted_moments(panel, name):
    y = panel[name].values
    return fv.lagged_moments(y, 4, center=y.mean(axis=0))


def test_golden_converged(golden, lakes):
    setting, _ = golden
    fitted = golden_model(setting, local_tol=1e-10).fit(lakes)
    for name in setting["clients"]:
        assert np.abs(fitted.deltas_[name]).sum() == pytest.approx(setting["delta_l1_converged"][name], abs=2e-4)
        assert abs(np.count_nonzero(fitted.deltas_[name]) - setting["delta_nnz_converged"][name]) <= 2
        assert fitted.gap_[name] <= 1e-10


# -- Stage II, invariances -----------------------------------------------------------------------------------------


def test_stage_two_is_the_lasso_of_scaled_rows(series):
    fitted = FedVAR(order=2, rank=1, l1_penalty=0.08, local_tol=1e-12).fit(series)
    for name, y in series.items():
        response, x = design((y - y.mean(axis=0)) / y.std(axis=0), 2)
        np.testing.assert_allclose(fitted.deltas_[name], lasso_rows(response, x, 0.08, fitted.A0_), atol=1e-6)
        np.testing.assert_allclose(fitted.coef_[name], fitted.A0_ + fitted.deltas_[name])
        errors = response - x @ fitted.coef_[name].T
        np.testing.assert_allclose(fitted.noise_cov_[name], errors.T @ errors / len(errors), atol=1e-10)
        assert fitted.spectral_radius_[name] == pytest.approx(companion_radius(fitted.coef_[name]), rel=1e-9)
    assert np.linalg.matrix_rank(fitted.A0_, tol=1e-9) == 1


def test_rank_zero_shares_nothing(series):
    fitted = FedVAR(order=2, rank=0, l1_penalty=0.05).fit(series)
    np.testing.assert_array_equal(fitted.A0_, 0.0)
    alone = FedVAR(order=2, rank=0, l1_penalty=0.05).fit(series["east"])
    np.testing.assert_allclose(fitted.coef_["east"], alone.coef_["series"], atol=1e-12)


def test_order_of_clients_does_not_matter(series, model):
    other = FedVAR(order=2, rank=2, l1_penalty=0.05).fit(dict(reversed(series.items())))
    np.testing.assert_array_equal(other.A0_, model.A0_)
    assert other.clients_ == NAMES[::-1]
    for name in NAMES:
        np.testing.assert_array_equal(other.coef_[name], model.coef_[name])


def test_order_of_columns_permutes_the_answer(series, model):
    new = [2, 0, 1]
    other = FedVAR(order=2, rank=2, l1_penalty=0.05).fit({n: y[:, new] for n, y in series.items()})
    wide = np.concatenate([np.array(new), np.array(new) + 3])
    for name in NAMES:
        np.testing.assert_allclose(other.coef_[name], model.coef_[name][np.ix_(new, wide)], atol=1e-10)
        got, want = (values_of(one.forecast(3), name) for one in (other, model))
        np.testing.assert_allclose(got, want[:, new], rtol=1e-8)


def test_units_and_constants_change_forecasts_only_by_themselves(series, model):
    factor, shift = np.array([1000.0, 1.0, 1.0]), np.array([0.0, 7.0, -400.0])
    other = FedVAR(order=2, rank=2, l1_penalty=0.05).fit({n: y * factor + shift for n, y in series.items()})
    np.testing.assert_allclose(other.A0_, model.A0_, atol=1e-9)
    for name in NAMES:
        got, want = (values_of(one.forecast(4), name) for one in (other, model))
        np.testing.assert_allclose(got, want * factor + shift, rtol=1e-8)


# -- forecasts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"center": False}, {"scale": False}, {"center": False, "scale": False}])
def test_forecasts_are_the_recursion_in_original_units(series, options):
    fitted = FedVAR(order=2, rank=2, l1_penalty=0.05, **options).fit(series)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableModelWarning)
        forecast = fitted.forecast(5)
    for name, y in series.items():
        coef, intercept = fitted.coef_original(name), fitted.intercept_original(name)
        np.testing.assert_allclose(values_of(forecast, name), recursion(coef, intercept, y[-2:], 5), rtol=1e-9)
        predicted = values_of(fitted.predict({name: y}), name)
        want = [recursion(coef, intercept, y[t - 2 : t], 1)[0] for t in range(2, len(y))]
        np.testing.assert_allclose(predicted, want, rtol=1e-8, atol=1e-9)
    assert list(forecast["client"].unique()) == list(NAMES) and len(forecast) == 15


def test_interval_widths_by_hand():
    y, _ = stable_series(np.random.default_rng(1), 200, 2)
    fitted = FedVAR(order=1, rank=1, l1_penalty=0.02).fit(y * [1.0, 10.0] + 3.0)
    frame = fitted.forecast(2, level=[80, 95])
    a, sigma = fitted.coef_["series"], fitted.noise_cov_["series"]
    scale = np.std(y * [1.0, 10.0], axis=0)
    variances = [np.diag(sigma), np.diag(sigma + a @ sigma @ a.T)]
    wide = fitted.forecast(2)
    assert list(frame.columns) == ["client", "time", "variable", "mean", "level", "lower", "upper"]
    for row in frame.itertuples():
        h, i = row.time - wide["time"].iloc[0], ["y1", "y2"].index(row.variable)
        width = norm.ppf(0.5 + row.level / 200) * scale[i] * np.sqrt(variances[h][i])
        assert row.upper - row.mean == pytest.approx(width, rel=1e-9)
        assert row.mean - row.lower == pytest.approx(width, rel=1e-9)
        assert row.mean == pytest.approx(wide[row.variable].iloc[h], rel=1e-12)
    assert len(frame) == 2 * 2 * 2


def test_interval_coverage_by_simulation():
    rng = np.random.default_rng(2)
    long, coef = stable_series(rng, 2000, 2, radius=0.7)
    fitted = FedVAR(order=1, rank=2, l1_penalty=0.0, shared_solver="exact").fit(long)
    frame = fitted.forecast(3, level=90)
    paths = np.repeat(long[-1][None], 4000, axis=0)
    for h in range(3):
        paths = paths @ coef.T + rng.standard_normal(paths.shape)
        for i, variable in enumerate(("y1", "y2")):
            row = frame[frame["variable"] == variable].iloc[h]
            inside = np.mean((row["lower"] <= paths[:, i]) & (paths[:, i] <= row["upper"]))
            assert 0.85 < inside < 0.95


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_a_constant_column_is_forecast_by_its_constant(center, scale):
    y = stable_series(np.random.default_rng(3), 80, 3)[0]
    y[:, 1] = 0.1 + 0.2  # no short binary fraction
    with pytest.warns(ConstantColumnWarning, match="'y2'") as caught:
        fitted = FedVAR(order=1, rank=1, l1_penalty=0.02, center=center, scale=scale).fit(y)
    assert len(caught) == 1
    assert np.all(fitted.forecast(4)["y2"] == y[0, 1])
    assert np.all(fitted.predict(y)["y2"] == y[0, 1])
    intervals = fitted.forecast(2, level=90)
    held = intervals[intervals["variable"] == "y2"]
    assert np.all(held["lower"] == held["upper"])
    assert np.isfinite(intervals["upper"]).all()


def test_an_explosive_model_warns():
    y = np.cumsum(np.cumsum(np.ones((60, 2)), axis=0), axis=0) ** 2 + np.random.default_rng(4).standard_normal((60, 2))
    fitted = FedVAR(order=1, rank=2, center=False, l1_penalty=0.0, shared_solver="exact").fit(y)
    assert fitted.spectral_radius_["series"] >= 1
    fitted.forecast(1)
    with pytest.warns(UnstableModelWarning, match="series"):
        fitted.forecast(2)


def test_a_wide_model_without_dynamics_can_forecast():
    # Beyond 256 companion dimensions the radius is found iteratively; a zero matrix has none to iterate on.
    y = np.random.default_rng(5).standard_normal((40, 260))
    fitted = FedVAR(order=1, rank=0, l1_penalty=50.0).fit({"a": y, "b": y[:30]})
    np.testing.assert_array_equal(fitted.coef_["a"], 0.0)
    assert fitted.spectral_radius_["a"] == 0.0
    np.testing.assert_allclose(values_of(fitted.forecast(2), "a"), np.tile(y.mean(axis=0), (2, 1)))


def test_clip_winsorises_before_everything(series):
    y = {name: one.copy() for name, one in series.items()}
    y["east"][10, 0] = 1e6
    fitted = FedVAR(order=2, rank=1, clip=2.5).fit(y)
    column = y["east"][:, 0]
    bound = column.mean() + 2.5 * column.std()
    clipped = np.minimum(y["east"], np.array([bound, np.inf, np.inf]))
    mean, sd = y["east"].mean(axis=0), y["east"].std(axis=0)
    low, high = mean - 2.5 * sd, mean + 2.5 * sd
    response, x = design((np.clip(clipped, low, high) - mean) / sd, 2)
    errors = response - x @ fitted.coef_["east"].T
    np.testing.assert_allclose(fitted.noise_cov_["east"], errors.T @ errors / len(errors), atol=1e-9)


def test_bad_forecast_arguments(model):
    for steps in (0, -1, 1.5, True, "3", None):
        with pytest.raises(OptionError, match="steps"):
            model.forecast(steps)
    for level in (0, 100, -5, 120, [90, 101], [], "90", float("nan"), float("inf"), True):
        with pytest.raises(OptionError, match="level"):
            model.forecast(1, level=level)


# -- shapes of data, state -----------------------------------------------------------------------------------------


def test_a_single_array_is_one_client(series):
    fitted = FedVAR(order=2, rank=1).fit(series["west"])
    assert fitted.clients_ == ("series",)
    forecast = fitted.forecast(2)
    assert list(forecast["client"]) == ["series", "series"] and list(forecast.columns[2:]) == ["y1", "y2", "y3"]


def test_dates_and_frames_come_back(series):
    dates = pd.date_range("2020-01-01", periods=90, freq="MS")
    frame = pl.DataFrame({"date": dates.to_numpy()} | {c: series["west"][:, i] for i, c in enumerate("abc")})
    forecast = FedVAR(order=2, rank=1).fit({"w": frame}).forecast(3)
    assert isinstance(forecast, pl.DataFrame) and forecast.columns == ["client", "date", "a", "b", "c"]
    want = pd.date_range(dates[-1], periods=4, freq="MS")[1:]
    assert [str(day)[:10] for day in forecast["date"].to_list()] == [str(day)[:10] for day in want]


@pytest.mark.parametrize("n_jobs", [2, 4, None])
def test_threads_change_no_bit(series, model, n_jobs):
    long = {name: np.tile(y, (20, 1)) for name, y in series.items()}
    one, other = (FedVAR(order=2, rank=2, l1_penalty=0.05, n_jobs=n).fit(long) for n in (1, n_jobs))
    np.testing.assert_array_equal(one.A0_, other.A0_)
    for name in NAMES:
        np.testing.assert_array_equal(one.coef_[name], other.coef_[name])
        np.testing.assert_array_equal(values_of(one.forecast(2), name), values_of(other.forecast(2), name))


def test_nothing_global_changes(series, tmp_path):
    np.random.seed(3)  # noqa: NPY002  # the global state is the point
    state, filters, pools = np.random.get_state(), list(warnings.filters), pool_threads()  # noqa: NPY002
    errors = np.geterr()
    kept = {name: y.copy() for name, y in series.items()}
    fitted = FedVAR(order=2, rank=2, l1_penalty=0.1).fit(series)
    fitted.forecast(3, level=90)
    fitted.update({"west": series["west"][:5]}).save(tmp_path / "m")
    fv.load(tmp_path / "m").add_client("new", series["west"]).summary()
    after = np.random.get_state()  # noqa: NPY002
    assert state[0] == after[0] and np.array_equal(state[1], after[1]) and state[2:] == after[2:]
    assert list(warnings.filters) == filters and pool_threads() == pools and np.geterr() == errors
    for name, y in series.items():
        np.testing.assert_array_equal(y, kept[name])


def test_local_tolerance_that_is_not_reached_warns(series, monkeypatch):
    from fedvar_fast.solvers import fista

    monkeypatch.setattr(fista.kernels, "coordinate_lasso", stopped_early(fista.kernels.coordinate_lasso))
    with pytest.warns(ConvergenceWarning):
        FedVAR(order=2, rank=1, l1_penalty=0.01, local_tol=1e-12).fit({"west": series["west"]})


def stopped_early(real):
    def solve(*args):
        return real(*args[:6], 1, *args[7:])

    return solve


# -- options -------------------------------------------------------------------------------------------------------


def test_params_and_clone(series):
    fitted = FedVAR(order=2, rank=2, l1_penalty={"west": 0.1, "east": 0.2, "north": 0.3}).fit(series)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params() and not hasattr(copy, "coef_")
    assert copy.set_params(rank=1, l1_penalty=0.05).rank == 1
    assert fitted.l1_penalty_ == {"west": 0.1, "east": 0.2, "north": 0.3}
    with pytest.raises(ValueError, match="nonsense"):
        copy.set_params(nonsense=1)
    with pytest.raises(TypeError):
        FedVAR(nonsense=1)
    with pytest.raises(NotFittedError):
        copy.forecast(1)
    assert "rank=2" in repr(fitted) and "west" in fitted.summary()


def test_rate_penalty(series):
    fitted = FedVAR(order=2, rank=1, l1_penalty="rate").fit(series)
    for name, y in series.items():
        assert fitted.l1_penalty_[name] == pytest.approx(2 * np.sqrt(np.log(6) / (len(y) - 2)))


BAD = [
    {"order": 0}, {"order": 2.5}, {"order": True}, {"order": "2"}, {"rank": -1}, {"rank": 4}, {"rank": 1.5},
    {"rank": True}, {"init": np.zeros((3, 6))}, {"init": np.ones((6, 3))}, {"init": np.full((3, 6), np.nan)},
    {"init": "local?"}, {"shared_solver": "magic"}, {"engine": "flare?"}, {"n_rounds": 0}, {"n_rounds": "many"},
    {"n_rounds": 2.5}, {"step": 0}, {"step": -0.1}, {"step": "big"}, {"step": np.nan}, {"ridge": -1.0},
    {"ridge": np.inf}, {"shared_tol": -1e-3}, {"l1_penalty": -0.1}, {"l1_penalty": "cv?"}, {"l1_penalty": np.nan},
    {"l1_penalty": {"west": 0.1, "east": 0.1}}, {"l1_penalty": {"west": -1.0, "east": 0.1, "north": 0.1}},
    {"local_iter": -1}, {"local_iter": 2.5}, {"local_tol": -1.0}, {"clip": 0}, {"clip": -1.0}, {"clip": "3"},
    {"n_jobs": 0}, {"n_jobs": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: "-".join(f"{k}={v}" for k, v in bad.items())[:40])
def test_bad_options(series, bad):
    fitted = FedVAR(**({"order": 2, "rank": 1} | bad))  # the constructor computes and checks nothing
    with pytest.raises(OptionError, match=next(iter(bad))[:4] if "init" not in bad else "init|unknown"):
        fitted.fit(series)
    assert not hasattr(fitted, "coef_")


@pytest.mark.parametrize(
    "bad", [{"step": np.ones(2)}, {"rank": np.array([1])}, {"n_rounds": np.array([1, 2])}, {"init": [["a"]]}]
)
def test_arrays_and_text_where_numbers_belong(series, bad):
    with pytest.raises((OptionError, OptionTypeError), match=next(iter(bad))):
        FedVAR(**({"order": 2, "rank": 1} | bad)).fit(series)


@pytest.mark.parametrize(
    "bad",
    [{"privacy": 1.0}, {"center": "yes"}, {"scale": 1}, {"verbose": 2}, {"random_state": -1}, {"random_state": "a"}],
)
def test_options_of_a_wrong_type(series, bad):
    with pytest.raises(OptionTypeError, match=next(iter(bad))):
        FedVAR(order=2, **bad).fit(series)


@pytest.mark.parametrize("step", [1e3, 1e8, 1e300])
def test_a_step_that_diverges_is_a_named_error(series, step):
    # api.md: errors are ValueError or TypeError and say what to do; LAPACK's complaint about NaN does not.
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="step"):
        FedVAR(order=2, rank=1, step=step, n_rounds=200).fit(series)


def test_too_few_rows_and_no_variation(series):
    FedVAR(order=2, rank=1, l1_penalty="rate").fit({"a": series["west"][:4]})
    with pytest.raises(DataError, match="'b' has 3 rows"):
        FedVAR(order=2, rank=1).fit({"a": series["west"], "b": series["east"][:3]})
    with pytest.warns(ConstantColumnWarning), pytest.raises(OptionError, match="constant"):
        FedVAR(order=1, rank=1).fit(np.ones((30, 2)))
