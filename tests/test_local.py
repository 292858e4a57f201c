"""The estimators of each client alone: independent solvers, what is kept, files, edge cases."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from oracles import design, lasso_objective, lasso_rows, recursion, stable_series
from sklearn.base import clone

import fedvar_fast as fv
from fedvar_fast import AutoregressionVAR, LassoVAR, LeastSquaresVAR, LocalVAR, NuclearVAR
from fedvar_fast.exceptions import ConstantColumnWarning, ConvergenceWarning, DataError, GridEdgeWarning, OptionError
from fedvar_fast.solvers.admm import low_rank_plus_sparse

NAMES = ("west", "east", "north")
TOL = 1e-8
#: Each estimator with penalties that leave something of each part.
ESTIMATORS = {
    "LeastSquaresVAR": LeastSquaresVAR(order=2),
    "AutoregressionVAR": AutoregressionVAR(order=2),
    "LassoVAR": LassoVAR(order=2, l1_penalty=0.1, tol=TOL),
    "NuclearVAR": NuclearVAR(order=2, nuclear_penalty=0.15, tol=TOL),
    "LocalVAR": LocalVAR(order=2, nuclear_penalty=0.2, l1_penalty=0.12, tol=TOL),
    "LocalVAR box": LocalVAR(order=2, nuclear_penalty=0.1, l1_penalty=0.12, max_entry=0.1, tol=TOL),
}


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    scale, mean = np.array([1.0, 5.0, 0.1]), np.array([0.0, 30.0, -2.0])
    return {n: stable_series(rng, t, 3, 2)[0] * scale + mean for n, t in zip(NAMES, (90, 70, 120), strict=True)}


def standardized(y):
    return (y - y.mean(axis=0)) / y.std(axis=0)


def frame_of(data_dir, *parts):
    return pd.read_csv(data_dir.joinpath(*parts)).iloc[:, 1:]


# -- against independent solvers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("panel", "name", "order"), [("great_lakes", "Ohio", 4), ("macro", "DNK", 1)])
@pytest.mark.parametrize("penalty", [0.05, 0.3])
def test_lasso_objective_is_scikit_learns(data_dir, panel, name, order, penalty):
    y = frame_of(data_dir, panel, f"{name}.csv").to_numpy()
    fitted = LassoVAR(order, penalty, tol=TOL).fit({name: y})
    response, x = design(standardized(y), order)
    want = lasso_objective(response, x, lasso_rows(response, x, penalty), penalty)
    got = lasso_objective(response, x, fitted.coef_[name], penalty)
    np.testing.assert_allclose(got, want, rtol=1e-7)
    assert fitted.gap_[name] <= TOL
    np.testing.assert_array_equal(fitted.coef_[name], fitted.sparse_[name])
    assert not fitted.low_rank_[name].any()


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(("name", "order"), [("Indiana", 4), ("Ohio", 1)])
def test_least_squares_is_statsmodels(data_dir, name, order, scale):
    from statsmodels.tsa.api import VAR

    y = frame_of(data_dir, "great_lakes", f"{name}.csv").to_numpy()
    fitted = LeastSquaresVAR(order, scale=scale).fit({name: y})
    z = standardized(y) if scale else y - y.mean(axis=0)
    want = VAR(z).fit(order, trend="n").params.T
    np.testing.assert_allclose(fitted.coef_[name], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["DNK", "KOR", "USA"])
@pytest.mark.parametrize("order", [1, 2])
def test_least_squares_of_nearly_singular_panels(data_dir, name, order):
    # COM equals CPI to 2e-4: the design has condition 1e5. From moments, coefficients lose its square; what the
    # loss is and how long the coefficients are must not suffer.
    y = frame_of(data_dir, "macro", f"{name}.csv").to_numpy()
    response, x = design(standardized(y), order)
    want = np.linalg.lstsq(x, response, rcond=None)[0].T
    got = LeastSquaresVAR(order).fit({name: y}).coef_[name]
    lost = 10 * np.finfo(float).eps * np.linalg.cond(x) ** 2
    np.testing.assert_allclose(got, want, rtol=0, atol=lost * np.abs(want).max())
    assert np.sum((response - x @ got.T) ** 2) <= np.sum((response - x @ want.T) ** 2) * (1 + 1e-9)


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5])
def test_least_squares_of_short_series_is_of_minimum_norm(dim):
    # T < pd: the moments are singular, whatever rounding makes of their pivots.
    rng = np.random.default_rng(dim)
    for _ in range(40):
        order = int(rng.integers(1, 5)) if dim > 2 else int(rng.integers(3, 6))
        rows = int(rng.integers(2, dim * order))
        y = rng.standard_normal((rows + order, dim))
        response, x = design(standardized(y), order)
        want = np.linalg.lstsq(x, response, rcond=None)[0].T
        if np.linalg.cond(x) > 1e3:
            continue
        got = LeastSquaresVAR(order).fit({"a": y}).coef_["a"]
        np.testing.assert_allclose(got, want, atol=1e-9 * max(1.0, np.abs(want).max()))


def test_least_squares_of_a_short_macro_panel_is_of_minimum_norm(data_dir):
    y = frame_of(data_dir, "macro", "DNK.csv").to_numpy()[:40]
    response, x = design(standardized(y), 3)
    assert len(x) < x.shape[1]
    want = np.linalg.lstsq(x, response, rcond=None)[0].T
    got = LeastSquaresVAR(3).fit({"DNK": y}).coef_["DNK"]
    assert np.linalg.norm(got) <= np.linalg.norm(want) * (1 + 1e-6)
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(("panel", "name", "order"), [("great_lakes", "Ohio", 4), ("macro", "USA", 2)])
def test_autoregressions_are_one_regression_a_column(data_dir, panel, name, order):
    y = frame_of(data_dir, panel, f"{name}.csv").to_numpy()
    coef = AutoregressionVAR(order).fit({name: y}).coef_[name]
    z = standardized(y)
    dim = z.shape[1]
    rest = coef.copy()
    for i in range(dim):
        response, x = design(z[:, [i]], order)
        want = np.linalg.lstsq(x, response[:, 0], rcond=None)[0]
        np.testing.assert_allclose(coef[i, i::dim], want, atol=1e-9)
        rest[i, i::dim] = 0.0
    assert not rest.any()


@pytest.mark.parametrize(("panel", "name", "part"), [("great_lakes", "Ohio", 0.1), ("macro", "DNK", 0.2)])
def test_nuclear_norm_meets_an_interior_point_solver(data_dir, panel, name, part):
    cp = pytest.importorskip("cvxpy")
    y = frame_of(data_dir, panel, f"{name}.csv").to_numpy()
    response, x = design(standardized(y), 1)
    penalty = part * 2.0 * np.linalg.norm(response.T @ x, 2) / len(x)
    fitted = NuclearVAR(1, penalty, tol=TOL).fit({name: y})
    width = x.shape[1]
    r = np.linalg.qr(np.hstack([x, response]), mode="r") / math.sqrt(len(x))
    a = cp.Variable((width, width))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(r[:, :width] @ a.T - r[:, width:]) + penalty * cp.normNuc(a)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    coef = fitted.coef_[name]
    got = np.sum((response - x @ coef.T) ** 2) / len(x) + penalty * np.linalg.svd(coef, compute_uv=False).sum()
    assert got == pytest.approx(want, rel=1e-7)
    np.testing.assert_array_equal(coef, fitted.low_rank_[name])
    assert not fitted.sparse_[name].any() and fitted.l1_penalty_[name] == math.inf


@pytest.mark.parametrize("box", [None, 0.08])
def test_low_rank_plus_sparse_is_the_solver_on_scaled_rows(series, box):
    fitted = LocalVAR(2, 0.2, 0.12, box, tol=TOL).fit(series)
    for name, y in series.items():
        want = low_rank_plus_sparse(fv.lagged_moments(standardized(y), 2), 0.2, 0.12, box)
        np.testing.assert_allclose(fitted.low_rank_[name], want.low_rank, atol=1e-4)
        np.testing.assert_allclose(fitted.coef_[name], fitted.low_rank_[name] + fitted.sparse_[name], rtol=1e-15)
        assert 0 <= fitted.gap_[name] <= TOL
        assert fitted.low_rank_[name].any() and fitted.sparse_[name].any()
        if box is not None:
            assert np.abs(fitted.low_rank_[name]).max() <= box + 1e-9
        assert fitted.max_entry_[name] == (math.inf if box is None else box)


# -- penalties -----------------------------------------------------------------------------------------------------


def test_penalties_by_client_and_in_other_orders(series):
    by_client = LocalVAR(2, {"north": 0.3, "west": 0.1, "east": 0.2}, 0.1, {"west": 0.2, "east": 0.5, "north": 0.3})
    fitted = by_client.fit(series)
    assert fitted.nuclear_penalty_ == {"west": 0.1, "east": 0.2, "north": 0.3}
    assert fitted.max_entry_ == {"west": 0.2, "east": 0.5, "north": 0.3}
    one = LocalVAR(2, 0.3, 0.1, 0.3).fit(series)
    np.testing.assert_array_equal(fitted.coef_["north"], one.coef_["north"])
    with pytest.raises(OptionError, match=r"l1_penalty.*'east'"):
        LassoVAR(2, {"west": 0.1}).fit(series)


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_a_sequence_is_the_grid(series, kind):
    up, down = kind([0.05, 0.1, 0.2]), kind([0.2, 0.1, 0.05])
    for make in (LassoVAR, NuclearVAR):
        fitted = make(2, up, tol=TOL).fit(series)
        other = make(2, down, tol=TOL).fit(series)
        option = "l1_penalty" if make is LassoVAR else "nuclear_penalty"
        chosen = getattr(fitted, f"{option}_")
        assert chosen == getattr(other, f"{option}_") and set(chosen.values()) <= {0.05, 0.1, 0.2}
        for name in series:
            np.testing.assert_array_equal(fitted.tuning_[name][option], [0.2, 0.1, 0.05])
            assert np.asarray(fitted.tuning_[name]["errors"]).size == 3
            refit = make(2, chosen[name], tol=TOL).fit({name: series[name]})
            np.testing.assert_allclose(fitted.coef_[name], refit.coef_[name], atol=1e-6)


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
def test_default_grids_begin_where_the_part_is_zero(series):
    fitted = LocalVAR(2, n_origins=8).fit(series)
    for name, y in series.items():
        response, x = design(standardized(y)[:-8], 2)
        c = 2.0 * response.T @ x / len(x)
        assert fitted.tuning_[name]["nuclear_penalty"][0] == pytest.approx(np.linalg.norm(c, 2))
        assert fitted.tuning_[name]["l1_penalty"][0] == pytest.approx(np.abs(c).max())
        assert fitted.tuning_[name]["errors"].shape == (8, 8)


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_any_sequence_is_a_grid_of_fedvar(series, kind):
    model = fv.FedVAR(1, 1, l1_penalty=kind([0.1, 0.2, 0.4]), n_origins=8).fit(series)
    assert set(model.l1_penalty_.values()) <= {0.1, 0.2, 0.4}
    np.testing.assert_array_equal(model.tuning_["west"]["l1_penalty"], [0.4, 0.2, 0.1])


@pytest.mark.parametrize("grid", [[], [-0.1, 0.2], [0.1, math.nan], [0.1, 0.3, 0.2], [0.1, 0.1], "best", ["best"]])
@pytest.mark.parametrize("option", ["nuclear_penalty", "l1_penalty"])
def test_bad_grids(series, option, grid):
    with pytest.raises(OptionError, match=option):
        LocalVAR(2, **{option: grid}).fit(series)


@pytest.mark.parametrize(
    "options", [{"max_entry": -0.1}, {"max_entry": math.nan}, {"max_entry": "large"}, {"tol": -1}, {"max_iter": 0},
                {"n_origins": 0}, {"refit_every": 0}, {"n_origins": 2.5}]
)  # fmt: skip
def test_bad_options(series, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        LocalVAR(2, 0.1, 0.1).set_params(**options).fit(series)


def test_a_sequence_of_bounds_is_refused_or_used(series):
    # The docstring takes None, a number, a mapping or "cv".
    try:
        fitted = LocalVAR(2, 0.1, 0.1, [0.01, 0.02]).fit(series)
    except OptionError as error:
        assert "max_entry" in str(error)
    else:
        assert set(fitted.max_entry_.values()) <= {0.01, 0.02}


def test_without_penalties_it_is_least_squares(series):
    want = LeastSquaresVAR(2).fit(series)
    for model in (
        LassoVAR(2, 0.0), NuclearVAR(2, 0.0), LocalVAR(2, 0.0, 0.1), LocalVAR(2, 0.1, 0.0), LocalVAR(2, 0.0, 0.0),
        LocalVAR(2, 0.1, 0.0, 0.05),
    ):  # fmt: skip
        fitted = model.fit(series)
        for name in NAMES:
            np.testing.assert_allclose(fitted.coef_[name], want.coef_[name], atol=1e-9)
            assert fitted.gap_[name] <= TOL


@pytest.mark.parametrize("nuclear", [0.0, 0.1])
def test_a_bound_holds_without_penalties_too(series, nuclear):
    fitted = LocalVAR(2, nuclear, 0.0, 0.05).fit(series)
    for name in NAMES:
        assert np.abs(fitted.low_rank_[name]).max() <= 0.05 + 1e-9
        np.testing.assert_allclose(fitted.coef_[name], fitted.low_rank_[name] + fitted.sparse_[name])


def test_a_free_low_rank_part_in_a_box(series):
    fitted = LocalVAR(2, 0.0, 0.1, 0.05, tol=TOL).fit(series)
    for name in NAMES:
        assert np.abs(fitted.low_rank_[name]).max() <= 0.05 + 1e-9 and fitted.gap_[name] <= TOL


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
def test_a_tuned_bound_is_used_and_can_be_frozen(series):
    # Noise: the low-rank part overfits, so that a bound may or may not help.
    rng = np.random.default_rng(5)
    data = series | {"noise": rng.standard_normal((80, 3))}
    fitted = LocalVAR(2, 0.05, 0.3, "cv").fit(data)
    for name in data:
        assert np.abs(fitted.low_rank_[name]).max() <= fitted.max_entry_[name] + 1e-9
    again = fitted.frozen().fit(data)
    for name in data:
        np.testing.assert_allclose(again.coef_[name], fitted.coef_[name], atol=1e-12)


@pytest.mark.parametrize("part", [0.02, 0.05, 0.1, 0.3, 0.6])
def test_lasso_warns_only_of_a_gap_above_the_tolerance(data_dir, part):
    y = frame_of(data_dir, "macro", "DNK.csv").to_numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = LassoVAR(1, part).fit({"DNK": y})
    assert not caught or fitted.gap_["DNK"] > fitted.tol


def test_steps_that_do_not_suffice_name_the_client(series):
    with pytest.warns(ConvergenceWarning, match="'west'"):
        LocalVAR(2, 0.1, 0.05, tol=1e-13, max_iter=10).fit({"west": series["west"]})


def test_an_edge_is_warned_of_by_name(series):
    with pytest.warns(GridEdgeWarning, match=r"'west'.*l1_penalty=0\.4"):
        LassoVAR(2, [2.0, 0.4]).fit({"west": series["west"]})


# -- clipping, constants, missing values ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_clipping(series, name):
    y = series["west"].copy()
    y[40] += 4 * y.std(axis=0)
    fitted = clone(ESTIMATORS[name]).set_params(clip=2.0).fit({"west": y})
    free = clone(ESTIMATORS[name]).fit({"west": y})
    assert np.abs(fitted.coef_["west"] - free.coef_["west"]).max() > 1e-3
    low, high = y.mean(axis=0) - 2.0 * y.std(axis=0), y.mean(axis=0) + 2.0 * y.std(axis=0)
    by_hand = (np.clip(y, low, high) - fitted.center_["west"]) / fitted.scale_["west"]
    plain = clone(ESTIMATORS[name]).set_params(center=False, scale=False).fit({"west": by_hand})
    np.testing.assert_allclose(fitted.coef_["west"], plain.coef_["west"], atol=1e-4)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_constant_columns(series, name):
    y = series["west"].copy()
    y[:, 1] = 7.0
    with pytest.warns(ConstantColumnWarning, match="'west'"):
        fitted = clone(ESTIMATORS[name]).fit({"west": y})
    coef = fitted.coef_["west"]
    assert np.isfinite(coef).all() and np.abs(coef[1]).max() <= 1e-7 and np.abs(coef[:, [1, 4]]).max() <= 1e-7
    np.testing.assert_array_equal(fitted.forecast_values(5)["west"][:, 1], 7.0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_missing_rows_are_left_out(series, name):
    y = series["north"].copy()
    y[[30, 31, 77], [0, 2, 1]] = np.nan
    panel = fv.Panel.from_arrays({"north": y}, missing="drop")
    fitted = clone(ESTIMATORS[name]).fit(panel)
    z = (y - np.nanmean(y, axis=0)) / np.nanstd(y, axis=0)
    response, x = design(z, 2)
    errors = response - x @ fitted.coef_["north"].T
    np.testing.assert_allclose(fitted.noise_cov_["north"], errors.T @ errors / len(x), atol=1e-9)
    if name == "LeastSquaresVAR":
        np.testing.assert_allclose(fitted.coef_["north"], np.linalg.lstsq(x, response, rcond=None)[0].T, atol=1e-9)


def test_too_short_a_series_says_so(series):
    with pytest.raises(DataError, match=r"'east'.*3 rows"):
        LeastSquaresVAR(2).fit({"east": series["east"][:3]})


# -- conventions, forecasts, updates, files ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_conventions(series, name):
    model = ESTIMATORS[name]
    copy = clone(model)
    assert copy.get_params() == model.get_params() and type(copy) is type(model)
    assert copy.fit(series) is copy and copy.clients_ == NAMES
    with pytest.raises(TypeError):
        type(model)(bandwidth=3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_forecasts_and_predictions(series, name):
    fitted = clone(ESTIMATORS[name]).fit(series)
    forecasts, predicted = fitted.forecast_values(4), fitted.predict(series)
    for client, y in series.items():
        coef, intercept = fitted.coef_original(client), fitted.intercept_original(client)
        np.testing.assert_allclose(forecasts[client], recursion(coef, intercept, y[-2:], 4), rtol=1e-9, atol=1e-9)
        _, x = design(y, 2)
        values = predicted[predicted["client"] == client].drop(columns=["client", "time"]).to_numpy()
        np.testing.assert_allclose(values, x @ coef.T + intercept, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_update_is_a_fit_on_all_rows(series, name):
    first = {client: y[:-7] for client, y in series.items()}
    updated = clone(ESTIMATORS[name]).fit(first).update({client: series[client][-7:] for client in series})
    want = clone(ESTIMATORS[name]).fit(series)
    for client in series:
        np.testing.assert_allclose(updated.coef_[client], want.coef_[client], atol=1e-4)
        assert updated.gap_[client] <= TOL


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
def test_update_keeps_tuned_penalties_and_takes_given_ones(series):
    first = {client: y[:-5] for client, y in series.items()}
    rest = {client: y[-5:] for client, y in series.items()}
    fitted = LocalVAR(2, tol=TOL).fit(first)
    chosen, tuning = dict(fitted.nuclear_penalty_), fitted.tuning_
    fitted.update(rest)
    assert fitted.nuclear_penalty_ == chosen and fitted.tuning_ == tuning
    want = LocalVAR(2, chosen, fitted.l1_penalty_, tol=TOL).fit(series)
    for client in series:
        moments = fv.lagged_moments(standardized(series[client]), 2)
        objectives = [
            moments.loss(m.coef_[client])
            + chosen[client] * np.linalg.svd(m.low_rank_[client], compute_uv=False).sum()
            + fitted.l1_penalty_[client] * np.abs(m.sparse_[client]).sum()
            for m in (fitted, want)
        ]
        assert objectives[0] == pytest.approx(objectives[1], rel=1e-7)
    other = LocalVAR(2).fit(first).set_params(l1_penalty=0.07).update(rest)
    assert set(other.l1_penalty_.values()) == {0.07} and other.nuclear_penalty_ == chosen


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
@pytest.mark.parametrize("make", [LocalVAR, NuclearVAR, LassoVAR])
def test_frozen_reproduces(series, make):
    fitted = make(2).fit(series)
    copy = fitted.frozen()
    assert not hasattr(copy, "coef_")
    again = copy.fit(series)
    for client in series:
        np.testing.assert_allclose(again.coef_[client], fitted.coef_[client], atol=1e-12)
        assert again.tuning_[client] == {}
    assert again.nuclear_penalty_ == fitted.nuclear_penalty_ and again.l1_penalty_ == fitted.l1_penalty_


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")
@pytest.mark.parametrize(
    "model",
    [*ESTIMATORS.values(), LocalVAR(2), NuclearVAR(2, [0.3, 0.1]), LassoVAR(2, np.array([0.3, 0.1])),
     LassoVAR(2, dict.fromkeys(NAMES, np.float32(0.25))), LocalVAR(2, dict.fromkeys(NAMES, 0.25), (0.2, 0.1), "cv")],
    ids=lambda model: repr(model).replace(" ", "").replace("\n", ""),
)  # fmt: skip
def test_files(series, tmp_path, model):
    first = {client: y[:-4] for client, y in series.items()}
    rest = {client: y[-4:] for client, y in series.items()}
    fitted = clone(model).fit(first)
    fitted.save(tmp_path / "m")
    loaded = fv.load(tmp_path / "m")
    assert type(loaded) is type(fitted)
    for client in series:
        np.testing.assert_array_equal(loaded.coef_[client], fitted.coef_[client])
        np.testing.assert_array_equal(loaded.forecast_values(3)[client], fitted.forecast_values(3)[client])
    assert loaded.gap_ == fitted.gap_
    for attribute in ("nuclear_penalty_", "l1_penalty_", "max_entry_"):
        assert getattr(loaded, attribute, None) == getattr(fitted, attribute, None)
    for client, kept in getattr(fitted, "tuning_", {}).items():
        assert kept.keys() == loaded.tuning_[client].keys()
        for key, values in kept.items():
            np.testing.assert_array_equal(loaded.tuning_[client][key], values)
    # No warm start is kept, so the same optimum by another way.
    one, other = loaded.update(rest), fitted.update(rest)
    for client in series:
        np.testing.assert_allclose(one.coef_[client], other.coef_[client], atol=1e-4)
