from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fedvar_fast as fv
from fedvar_fast.estimators.local import AutoregressionVAR, LassoVAR, LeastSquaresVAR
from fedvar_fast.evaluation import rolling_evaluation
from fedvar_fast.exceptions import DataError, OptionError, OptionTypeError
from fedvar_fast.metrics import (
    diebold_mariano,
    mean_standard_error,
    rmsfe,
    rmsfe_standard_error,
    squared_errors,
)

pytestmark = pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
ORDER = 2
LENGTHS = {"long": 70, "short": 52}


@pytest.fixture(scope="module")
def panel() -> fv.Panel:
    return fv.simulate_panel(2, 3, ORDER, LENGTHS, 1, clients=list(LENGTHS), random_state=5)[0]


def least_squares_forecast(rows: np.ndarray, steps: int) -> np.ndarray:
    """Standardise, regress, iterate, undo: independent of the package."""
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    z = (rows - center) / scale
    x = np.hstack([z[ORDER - lag : len(z) - lag] for lag in range(1, ORDER + 1)])
    coef = np.linalg.lstsq(x, z[ORDER:], rcond=None)[0]
    path = list(z)
    for _ in range(steps):
        path.append(np.concatenate([path[-lag] for lag in range(1, ORDER + 1)]) @ coef)
    return path[-1] * scale + center


# -- the forecasts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize(("window", "length"), [("expanding", None), ("rolling", 30), ("rolling", None)])
def test_forecasts_are_those_of_a_loop_by_hand(panel, window, length, horizon):
    n = 6
    result = rolling_evaluation(
        panel, {"LS": LeastSquaresVAR(ORDER)}, n, horizon=horizon, window=window, window_length=length
    )
    for name, series in panel.items():
        values, first = series.values, len(series) - n - horizon + 1
        kept = first if length is None else length
        for i in range(n):
            end = first + i
            rows = values[end - kept if window == "rolling" else 0 : end]
            expected = least_squares_forecast(rows, horizon)
            np.testing.assert_allclose(result.forecasts["LS"][name][i], expected, rtol=0, atol=1e-9)
            np.testing.assert_allclose(result.forecasts["mean"][name][i], rows.mean(axis=0), rtol=0, atol=1e-12)
            np.testing.assert_allclose(result.scales[name][i], rows.std(axis=0), rtol=1e-12)
        np.testing.assert_array_equal(result.actuals[name], values[-n:])
        assert result.times[name] == list(series.time.to_labels())[-n:]
        assert not result.forecasts["zero"][name].any()


@pytest.mark.parametrize(
    "estimator",
    [
        fv.FedVAR(ORDER, 1, l1_penalty=0.1, local_tol=1e-9),
        fv.FedVAR(ORDER, 1, l1_penalty=0.1, shared_solver="exact"),
        LassoVAR(ORDER, 0.1, tol=1e-10),
        AutoregressionVAR(ORDER),
    ],
    ids=["rounds", "exact", "lasso", "ar"],
)
def test_updating_gives_what_fitting_again_gives(panel, estimator):
    updated = rolling_evaluation(panel, {"one": estimator}, 5)
    refitted = rolling_evaluation(panel, {"one": estimator}, 5, retune_every=1)
    for name in panel:
        np.testing.assert_allclose(updated.forecasts["one"][name], refitted.forecasts["one"][name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", ["expanding", "rolling"])
def test_the_future_changes_nothing(panel, window):
    n, changed = 6, 3
    estimators = {"Fed": fv.FedVAR(ORDER, 1, l1_penalty=0.1), "L1": LassoVAR(ORDER, n_origins=8)}
    before = rolling_evaluation(panel, estimators, n, window=window)
    other = {name: np.array(series.values) for name, series in panel.items()}
    for values in other.values():
        values[len(values) - n + changed :] = 100.0 * (1.0 + values[len(values) - n + changed :])
    after = rolling_evaluation(other, estimators, n, window=window)
    for method in before.methods:
        for name in panel:
            old, new = before.forecasts[method][name], after.forecasts[method][name]
            # The forecast of the first changed row is still made from unchanged ones.
            np.testing.assert_array_equal(old[: changed + 1], new[: changed + 1])
    assert all(np.abs(before.forecasts["Fed"][k][-1] - after.forecasts["Fed"][k][-1]).max() > 0.1 for k in panel)


def test_options_are_tuned_once_or_at_every_so_many_origins(panel):
    estimator = LassoVAR(ORDER, n_origins=8)
    once = rolling_evaluation(panel, {"L1": estimator, "AR": AutoregressionVAR(ORDER)}, 5)
    assert list(once.tuned["L1"]) == [0] and once.tuned["AR"] == {}
    training = panel.take({name: slice(0, length - 5) for name, length in LENGTHS.items()})
    assert once.tuned["L1"][0] == {"l1_penalty": estimator.fit(training).l1_penalty_}
    fixed = rolling_evaluation(panel, {"L1": estimator.frozen()}, 5)
    for name in panel:
        np.testing.assert_allclose(fixed.forecasts["L1"][name], once.forecasts["L1"][name], rtol=0, atol=1e-6)
    often = rolling_evaluation(panel, {"L1": LassoVAR(ORDER, n_origins=8)}, 5, retune_every=2)
    assert list(often.tuned["L1"]) == [0, 2, 4]


def test_estimators_are_left_alone(panel):
    estimator = LassoVAR(ORDER, n_origins=8)
    options = dict(estimator.get_params())
    rolling_evaluation(panel, {"L1": estimator}, 3, n_jobs=2)
    assert estimator.get_params() == options and not hasattr(estimator, "coef_")


def test_the_number_of_threads_changes_nothing(panel):
    estimators = {"Fed": fv.FedVAR(ORDER, 1, l1_penalty=0.1), "LS": LeastSquaresVAR(ORDER)}
    one = rolling_evaluation(panel, estimators, 6, retune_every=2)
    many = rolling_evaluation(panel, estimators, 6, retune_every=2, n_jobs=4)
    for method in one.methods:
        for name in panel:
            np.testing.assert_array_equal(one.forecasts[method][name], many.forecasts[method][name])


def test_missing_values_before_the_origins_are_left_out_and_in_them_refused():
    values = np.random.default_rng(0).standard_normal((60, 2))
    values[10, 1] = np.nan
    holed = fv.Panel.from_arrays({"a": values}, missing="drop")
    result = rolling_evaluation(holed, {"LS": LeastSquaresVAR(ORDER)}, 4)
    assert np.isfinite(result.rmsfe.to_numpy()).all()
    values[54, 1] = np.nan
    with pytest.raises(DataError, match="client 'a' has a missing value in column 'y2'"):
        rolling_evaluation(fv.Panel.from_arrays({"a": values}, missing="drop"), {"LS": LeastSquaresVAR(ORDER)}, 4)


# -- the figures ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(panel):
    estimators = {"LS": LeastSquaresVAR(ORDER), "AR": AutoregressionVAR(ORDER)}
    return rolling_evaluation(panel, estimators, 8, baseline="AR")


def test_rmsfe_of_the_zero_forecast_on_real_panels(data_dir: Path):
    panel = fv.read_panel(data_dir / "macro")
    result = rolling_evaluation(panel, {"AR": AutoregressionVAR(1)}, 20)
    for name, series in panel.items():
        by_hand = math.sqrt((series.values[-20:] ** 2).mean())
        assert result.rmsfe.at[name, "zero"] == pytest.approx(by_hand, rel=1e-12)
    # The README of the golden figures has 1.4581, to its own digits and row.
    assert result.rmsfe.at["mean", "zero"] == pytest.approx(1.4581, abs=1e-3)


def test_rmsfe_frames(result, panel):
    errors = {k: result.forecasts["LS"][k] - result.actuals[k] for k in panel}
    assert list(result.rmsfe.columns) == ["LS", "AR", "mean", "zero"]
    assert list(result.rmsfe.index) == [*LENGTHS, "mean"]
    pooled = {k: math.sqrt(sum(float(x) ** 2 for x in e.ravel()) / e.size) for k, e in errors.items()}
    for name in panel:
        assert result.rmsfe.at[name, "LS"] == pytest.approx(pooled[name], rel=1e-12)
        own = result.rmsfe_by_variable(name)["LS"]
        np.testing.assert_allclose(own, [math.sqrt((e**2).sum() / 8) for e in errors[name].T], rtol=1e-12)
    assert result.rmsfe.at["mean", "LS"] == pytest.approx(sum(pooled.values()) / 2, rel=1e-12)
    both = [result.rmsfe_by_variable(name) for name in panel]
    np.testing.assert_allclose(result.rmsfe_by_variable(), (both[0] + both[1]) / 2, rtol=1e-12)
    assert list(both[0].index) == list(panel.columns)


def test_scaled_units_divide_by_the_deviation_of_the_training_rows(panel):
    scaled = rolling_evaluation(panel, {"LS": LeastSquaresVAR(ORDER)}, 4, units="scaled")
    values = panel["short"].values
    by_hand = [(values[48 + i] / values[: 48 + i].std(axis=0)) ** 2 for i in range(4)]
    assert scaled.rmsfe.at["short", "zero"] == pytest.approx(math.sqrt(np.mean(by_hand)), rel=1e-12)


def test_standard_errors(result, panel):
    for method in result.methods:
        losses = {k: ((result.forecasts[method][k] - result.actuals[k]) ** 2).mean(axis=1) for k in panel}
        linear = 0.0
        for name, loss in losses.items():
            root = math.sqrt(loss.mean())
            assert result.standard_errors.at[name, method] == pytest.approx(stats.sem(loss) / (2 * root), rel=1e-10)
            linear = linear + loss / (2 * root) / 2
        assert result.standard_errors.at["mean", method] == pytest.approx(stats.sem(linear), rel=1e-10)


def test_compare_is_the_paired_t_test_one_step_ahead(result, panel):
    frame = result.compare().set_index(["client", "method"])
    loss = {
        m: [((result.forecasts[m][k] - result.actuals[k]) ** 2).mean(axis=1) for k in panel] for m in result.methods
    }
    for method in ("LS", "mean", "zero"):
        for k, name in enumerate(panel):
            expected = stats.ttest_rel(loss[method][k], loss["AR"][k])
            row = frame.loc[(name, method)]
            assert row["statistic"] == pytest.approx(expected.statistic, rel=1e-9)
            assert row["p_value"] == pytest.approx(expected.pvalue, rel=1e-9)
            assert row["difference"] == pytest.approx((loss[method][k] - loss["AR"][k]).mean(), rel=1e-9)
        pooled = stats.ttest_rel(np.mean(loss[method], axis=0), np.mean(loss["AR"], axis=0))
        assert frame.loc[("pooled", method), "p_value"] == pytest.approx(pooled.pvalue, rel=1e-9)
    assert set(result.compare("zero")["method"]) == {"LS", "AR", "mean"}


# -- Diebold and Mariano -------------------------------------------------------------------------------------


def test_diebold_mariano_by_hand_two_steps_ahead():
    d = [1.0, 2.0, 0.0, 3.0, 1.0]  # mean 1.4, deviations -.4 .6 -1.4 1.6 -.4
    g0 = (0.16 + 0.36 + 1.96 + 2.56 + 0.16) / 5
    g1 = (0.6 * -0.4 + -1.4 * 0.6 + 1.6 * -1.4 + -0.4 * 1.6) / 5
    assert g0 + 2 * g1 < 0  # the sum may be negative; Bartlett's weights then
    error = math.sqrt((g0 + 2 * 0.5 * g1) / 5) / math.sqrt((5 + 1 - 4 + 2 / 5) / 5)
    found = diebold_mariano(np.array(d) + 1.0, np.ones(5), horizon=2)
    assert found.difference == pytest.approx(1.4)
    assert found.statistic == pytest.approx(1.4 / error)
    assert found.p_value == pytest.approx(2 * stats.t.sf(1.4 / error, 4))
    smooth = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    c = smooth - 2.5
    v = (c @ c + 2 * (c[1:] @ c[:-1])) / 6
    expected = math.sqrt(v / 6) / math.sqrt((6 + 1 - 4 + 2 / 6) / 6)
    assert mean_standard_error(smooth, 2) == pytest.approx(expected)


def test_diebold_mariano_against_statsmodels():
    stattools = pytest.importorskip("statsmodels.tsa.stattools")
    if not hasattr(stattools, "diebold_mariano_test"):
        pytest.skip("statsmodels before 0.15 has no such test")
    y, a, b = np.random.default_rng(3).standard_normal((3, 25))
    theirs = stattools.diebold_mariano_test(y, a, b, lags=0, harvey_adj=True)
    ours = diebold_mariano(squared_errors(a, y), squared_errors(b, y))
    assert ours.statistic == pytest.approx(theirs.statistic, rel=1e-10)
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-10)


def test_comparisons_that_are_not_defined():
    equal = diebold_mariano([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert equal.difference == 0 and math.isnan(equal.statistic) and math.isnan(equal.p_value)
    constant = diebold_mariano([1.1, 2.1, 3.1], [1.0, 2.0, 3.0])
    assert constant.difference == pytest.approx(0.1) and math.isnan(constant.p_value)
    assert math.isnan(mean_standard_error([1.0])) and math.isnan(mean_standard_error([1.0, 2.0], 2))
    assert math.isnan(rmsfe_standard_error([0.0, 0.0]))
    with pytest.raises(DataError, match="paired"):
        diebold_mariano([1.0], [1.0, 2.0])
    with pytest.raises(OptionError, match="horizon=0"):
        mean_standard_error([1.0, 2.0], 0)


def test_rmsfe_of_arrays():
    forecasts, actuals = np.array([[1.0, 0.0], [3.0, 0.0]]), np.zeros((2, 2))
    assert rmsfe(forecasts, actuals) == pytest.approx(math.sqrt(10 / 4))
    np.testing.assert_allclose(rmsfe(forecasts, actuals, by_variable=True), [math.sqrt(5), 0.0])
    with pytest.raises(DataError, match="shape"):
        rmsfe(forecasts, actuals[0])


# -- tables --------------------------------------------------------------------------------------------------


def test_csv_has_all_digits(result):
    rows = list(csv.DictReader(io.StringIO(result.table("csv"))))
    assert len(rows) == 3 * 4
    for row in rows:
        assert float(row["rmsfe"]) == result.rmsfe.at[row["client"], row["method"]]
        assert float(row["standard_error"]) == result.standard_errors.at[row["client"], row["method"]]
        assert (row["p_value"] == "") == (row["method"] == "AR")
    pooled = result.compare().set_index(["client", "method"]).at[("pooled", "LS"), "p_value"]
    assert float(next(r for r in rows if (r["client"], r["method"]) == ("mean", "LS"))["p_value"]) == pooled


def test_json_is_the_dict(result, panel):
    content = json.loads(result.table("json"))
    assert content == result.to_dict()
    assert content["rmsfe"]["short"]["LS"] == result.rmsfe.at["short", "LS"]
    assert content["settings"]["n_origins"] == 8 and content["comparison"][0]["baseline"] == "AR"
    assert "forecasts" not in content
    kept = json.loads(json.dumps(result.to_dict(forecasts=True), allow_nan=False))
    np.testing.assert_array_equal(kept["forecasts"]["LS"]["long"], result.forecasts["LS"]["long"])


def test_text_and_markdown_mark_the_best(result):
    text, markdown = result.table(), result.table("markdown")
    assert "8 forecast(s) 1 step(s) ahead" in text
    for client in (*LENGTHS, "mean"):
        best = result.rmsfe.loc[client].min()
        assert f"{best:.4f}*" in next(line for line in text.splitlines() if line.startswith(client))
        assert f"**{best:.4f}**" in next(line for line in markdown.splitlines() if line.startswith(f"| {client}"))
    change = 100 * (result.rmsfe.at["mean", "LS"] / result.rmsfe.at["mean", "AR"] - 1)
    assert f"{change:+.2f}" in next(line for line in text.splitlines() if line.startswith("vs AR"))
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1


def test_one_origin_has_no_standard_error(panel):
    result = rolling_evaluation(panel, {"AR": AutoregressionVAR(ORDER)}, 1, baseline="zero")
    assert result.standard_errors.isna().to_numpy().all()
    assert json.loads(result.table("json"))["standard_error_of_mean"]["AR"] is None
    assert "-" in result.table()


def test_clients_with_the_names_of_rows():
    values = np.random.default_rng(1).standard_normal((2, 40, 2))
    result = rolling_evaluation({"mean": values[0], "pooled": values[1]}, {"AR": AutoregressionVAR(1)}, 3)
    assert list(result.rmsfe.index) == ["mean", "pooled", "mean_"]
    assert "pooled_" in set(result.compare("zero")["client"])


def test_a_progress_bar_when_asked(panel, capsys):
    pytest.importorskip("tqdm")
    rolling_evaluation(panel, {"AR": AutoregressionVAR(ORDER)}, 3, progress=True)
    out, err = capsys.readouterr()
    assert "3/3" in err and out == ""
    rolling_evaluation(panel, {"AR": AutoregressionVAR(ORDER)}, 3)
    assert capsys.readouterr() == ("", "")


# -- wrong input ---------------------------------------------------------------------------------------------

AR = {"AR": AutoregressionVAR(ORDER)}


@pytest.mark.parametrize(
    ("estimators", "options", "kind", "text"),
    [
        (AR, {"n_origins": 0}, OptionError, "n_origins=0"),
        (AR, {"n_origins": 2.5}, OptionError, "n_origins=2.5"),
        (AR, {"horizon": 0}, OptionError, "horizon=0"),
        (AR, {"retune_every": 0}, OptionError, "retune_every=0"),
        (AR, {"window": "sliding"}, OptionError, "'expanding' or 'rolling'"),
        (AR, {"units": "percent"}, OptionError, "'original' or 'scaled'"),
        (AR, {"window_length": 20}, OptionError, "window='rolling'"),
        (AR, {"window": "rolling", "window_length": 3}, OptionError, "needs at least 4 rows"),
        (AR, {"window": "rolling", "window_length": 40}, DataError, r"'short' \(52\).*at least 60 rows"),
        (AR, {"n_origins": 49}, DataError, r"'short' \(52\); 49 origin.* at least 53 rows"),
        (AR, {"n_origins": 47, "horizon": 3}, DataError, r"'short' \(52\).*at least 53 rows"),
        (AR, {"baseline": "LS"}, OptionError, "baseline='LS'"),
        (AR, {"n_jobs": 0}, OptionError, "n_jobs=0"),
        ({}, {}, OptionError, "empty"),
        ([AutoregressionVAR(1)], {}, OptionError, "mapping"),
        ({"zero": AutoregressionVAR(1)}, {}, OptionError, "always there"),
        ({"mean": AutoregressionVAR(1)}, {}, OptionError, "always there"),
        ({" ": AutoregressionVAR(1)}, {}, OptionError, "no text"),
        ({"AR": AutoregressionVAR}, {}, OptionTypeError, "AR"),
        ({"AR": AutoregressionVAR(0)}, {}, OptionError, "order=0"),
    ],
)
def test_wrong_options(panel, estimators, options, kind, text):
    with pytest.raises(kind, match=text):
        rolling_evaluation(panel, estimators, **options)


def test_the_fewest_rows_that_do_are_those_that_the_message_names(panel):
    assert np.isfinite(rolling_evaluation(panel, AR, 48).rmsfe.to_numpy()).all()


def test_wrong_questions(result):
    with pytest.raises(OptionError, match="xml"):
        result.table("xml")
    with pytest.raises(OptionError, match="baseline='x'"):
        result.compare("x")
    with pytest.raises(DataError, match="nobody"):
        result.rmsfe_by_variable("nobody")


def test_comparing_needs_a_baseline(panel):
    with pytest.raises(OptionError, match="baseline"):
        rolling_evaluation(panel, AR, 3).compare()


def test_an_error_in_a_thread_is_an_error(panel):
    with pytest.raises(OptionError, match="rank=9"):
        rolling_evaluation(panel, {"AR": AutoregressionVAR(1), "Fed": fv.FedVAR(1, 9)}, 4, n_jobs=2)
