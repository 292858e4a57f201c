"""Tuning by rolling forecasts: slow loops by hand, grids, edges, and what FedVAR chooses."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from oracles import design, lasso_rows, ridge_reduced_rank

import fedvar_fast as fv
from fedvar_fast import FedVAR, LassoVAR, LocalVAR, NuclearVAR
from fedvar_fast.estimators.fedvar_tuning import _STEP_FACTORS, tune_shared
from fedvar_fast.exceptions import DataError, GridEdgeWarning, OptionError, ZeroStartWarning
from fedvar_fast.federation.inprocess import SharedOptions
from fedvar_fast.rank import select_rank, vote
from fedvar_fast.solvers.admm import FactoredMoments, low_rank_plus_sparse
from fedvar_fast.tuning import (
    RollingOrigins,
    TuningPath,
    _shared_points,
    check_grid,
    penalty_grid,
    tune_lasso,
)

pytestmark = pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.GridEdgeWarning")

NAMES = ("west", "east", "north")
#: Few rolling forecasts, for speed.
FEW = {"n_origins": 8, "refit_every": 4}
ONCE = {"n_origins": 8, "refit_every": 8}


@pytest.fixture(scope="module")
def series():
    """Three clients that share a strong matrix of rank 1."""
    rng = np.random.default_rng(3)
    u, v = rng.standard_normal(4), rng.standard_normal(4)
    shared = 0.7 * np.outer(u, v) / abs(u @ v)
    data = {}
    for name, rows in zip(NAMES, (100, 80, 140), strict=True):
        y = np.zeros((rows + 50, 4))
        for t in range(1, len(y)):
            y[t] = shared @ y[t - 1] + rng.standard_normal(4)
        data[name] = y[50:] * np.array([1.0, 5.0, 0.1, 2.0]) + 3.0
    return data


@pytest.fixture(scope="module")
def noise():
    """Nothing to find: the local low-rank parts of all clients come out zero."""
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal((rows, 4)) for name, rows in zip(NAMES, (60, 70, 90), strict=True)}


def standardized(y):
    return (y - y.mean(axis=0)) / y.std(axis=0)


def origins_of(z, order, n_origins, refit_every=1):
    before = len(z) - n_origins
    return RollingOrigins(fv.lagged_moments(z[:before], order), z[before - order :], refit_every)


def rolling_errors(z, order, n_origins, refit_every, fit):
    """Mean squared one-step errors: `fit` gives coefficients from the responses and lags known at an origin."""
    total, count = 0.0, 0
    for start in range(0, n_origins, refit_every):
        known = len(z) - n_origins + start
        coef = fit(*design(z[:known], order))
        for t in range(known, min(known + refit_every, len(z))):
            lags = z[t - order : t][::-1].ravel()
            if np.isnan(z[t]).any() or np.isnan(lags).any():
                continue
            total += np.sum((z[t] - coef @ lags) ** 2)
            count += z.shape[1]
    return total / count


# -- rolling errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refit_every", [1, 3, 8])
def test_lasso_errors_are_those_of_a_slow_loop(series, refit_every):
    grid = [0.4, 0.1, 0.02]
    fitted = LassoVAR(2, grid, n_origins=8, refit_every=refit_every).fit(series)
    for name, y in series.items():
        z = standardized(y)
        want = [
            rolling_errors(z, 2, 8, refit_every, lambda r, x, penalty=penalty: lasso_rows(r, x, penalty))
            for penalty in grid
        ]
        np.testing.assert_allclose(fitted.tuning_[name]["errors"], want, rtol=5e-3)
        assert fitted.l1_penalty_[name] == grid[int(np.argmin(want))]


@pytest.mark.parametrize("box", [None, 0.05])
@pytest.mark.parametrize("refit_every", [1, 2])
def test_low_rank_plus_sparse_errors_are_those_of_a_slow_loop(series, refit_every, box):
    nuclear, l1 = [0.6, 0.15], [0.3, 0.06]
    z = standardized(series["west"])
    fitted = LocalVAR(1, nuclear, l1, box, n_origins=4, refit_every=refit_every).fit({"west": series["west"]})

    def errors(a, b):
        def fit(response, x):
            found = low_rank_plus_sparse(fv.lagged_moments(z[: len(x) + 1], 1), a, b, box, tol=1e-10)
            return found.low_rank + found.sparse

        return rolling_errors(z, 1, 4, refit_every, fit)

    want = [[errors(a, b) for b in l1] for a in nuclear]
    np.testing.assert_allclose(fitted.tuning_["west"]["errors"], want, rtol=1e-2)
    i, j = np.unravel_index(np.argmin(want), (2, 2))
    assert (fitted.nuclear_penalty_["west"], fitted.l1_penalty_["west"]) == (nuclear[i], l1[j])


@pytest.mark.parametrize("panel", ["great_lakes/Ohio.csv", "macro/DNK.csv"])
def test_a_zero_penalty_in_a_grid_is_least_squares(data_dir, panel):
    # The end of a path that reaches 0; the macro panel's moments are nearly singular.
    import pandas as pd

    z = standardized(pd.read_csv(data_dir / panel).iloc[:, 1:].to_numpy())
    want = rolling_errors(z, 1, 4, 4, lambda r, x: np.linalg.lstsq(x, r, rcond=None)[0].T)
    path = tune_lasso(origins_of(z, 1, 4, 4), np.array([0.1, 0.0]))
    assert path.errors[1] == pytest.approx(want, rel=1e-2)


@pytest.mark.parametrize("refit_every", [1, 2, 5, 50])
def test_moments_at_each_fit_are_those_of_the_rows_before_it(series, refit_every):
    z = standardized(series["north"])
    fits = list(origins_of(z, 2, 11, refit_every))
    assert len(fits) == math.ceil(11 / refit_every) and sum(len(y) for _, _, y in fits) == 11
    for number, (moments, x, y) in enumerate(fits):
        known = len(z) - 11 + number * refit_every
        fresh = fv.lagged_moments(z[:known], 2)
        assert moments.n_rows == fresh.n_rows == known - 2
        for part in ("xx", "yx", "yy"):
            np.testing.assert_allclose(getattr(moments, part), getattr(fresh, part), atol=1e-10)
        response, lags = design(z[known - 2 : known + refit_every], 2)
        np.testing.assert_array_equal(y, response)
        np.testing.assert_array_equal(x, lags)


def test_rows_without_response_or_lag_are_not_forecast(series):
    z = standardized(series["north"])
    z[[-9, -4], [0, 3]] = np.nan
    fits = list(origins_of(z, 2, 10, 3))
    assert sum(len(y) for _, _, y in fits) == 10 - 3 - 3
    assert all(np.isfinite(x).all() and np.isfinite(y).all() for _, x, y in fits)
    for number, (moments, _, _) in enumerate(fits):
        np.testing.assert_allclose(moments.xx, fv.lagged_moments(z[: len(z) - 10 + 3 * number], 2).xx, atol=1e-10)
    path = tune_lasso(origins_of(z, 2, 10, 3), np.array([0.2, 0.05]))
    want = [rolling_errors(z, 2, 10, 3, lambda r, x, p=p: lasso_rows(r, x, p)) for p in (0.2, 0.05)]
    np.testing.assert_allclose(path.errors, want, rtol=5e-3)


# -- grids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "text"),
    [([], "empty"), ([[0.1]], "empty"), ([-0.1, 0.2], "negative"), ([0.1, math.nan], "missing"), (["a"], "numbers"),
     ([0.1, math.inf], "finite"), ([0.1, 0.3, 0.2], "sorted"), ([0.1, 0.1], "each once"), ({"a": 1}, "numbers")],
)  # fmt: skip
def test_bad_grids(values, text):
    with pytest.raises(OptionError, match=rf"my_grid.*{text}"):
        check_grid("my_grid", values)


def test_grids_are_descending_copies():
    given = np.array([0.1, 0.2, 0.4])
    grid = check_grid("g", given)
    np.testing.assert_array_equal(grid, [0.4, 0.2, 0.1])
    grid[0] = 7.0
    np.testing.assert_array_equal(given, [0.1, 0.2, 0.4])
    np.testing.assert_array_equal(check_grid("g", (3, 1, 0)), [3.0, 1.0, 0.0])
    np.testing.assert_allclose(penalty_grid(2.0, 3, 0.01), [2.0, 0.2, 0.02])
    assert len(penalty_grid(5.0)) == 8 and penalty_grid(5.0)[0] == 5.0
    np.testing.assert_array_equal(penalty_grid(0.0), [0.0])


def test_the_choice_is_the_smallest_error_and_of_equals_the_largest_penalty():
    grids = {"a": np.array([3.0, 2.0, 1.0]), "b": np.array([5.0, 4.0])}
    path = TuningPath.from_errors(grids, np.array([[1.0, 0.5], [0.5, 0.7], [0.5, 0.9]]))
    assert path.chosen == {"a": 3.0, "b": 4.0} and path.at_edge == ("b",)


@pytest.mark.parametrize("grid", [[5.0, 0.1, 1e-3], [0.05, 0.02], [3.0, 0.4], [0.1]])
def test_the_edge_warning_comes_exactly_at_the_smallest(series, grid):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = LassoVAR(1, grid, **FEW).fit(series)
    warned = {str(w.message).split("'")[1] for w in caught if w.category is GridEdgeWarning}
    want = {name for name in NAMES if fitted.l1_penalty_[name] == min(grid)} if len(grid) > 1 else set()
    assert warned == want and len(caught) == len(want)


def test_the_edge_warning_comes_with_privacy_too(series):
    privacy = fv.Privacy(50.0, 1e-5, reproducible=True, calibration="paper")
    model = FedVAR(1, 1, l1_penalty=[30.0, 20.0, 0.4], privacy=privacy, random_state=0, n_rounds=2, **FEW)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = model.fit(series)
    warned = {str(w.message).split("'")[1] for w in caught if w.category is GridEdgeWarning}
    assert warned == {name for name in NAMES if fitted.l1_penalty_[name] == 0.4}


def test_points_that_share_a_solution_have_the_same(series):
    moments = FactoredMoments(fv.lagged_moments(standardized(series["west"]), 1))
    nuclear, l1 = np.array([1.0, 0.5, 0.2, 0.05, 0.0]), np.array([0.6, 0.3, 0.1, 0.04, 0.0])
    shared = _shared_points(nuclear, l1, 16)
    assert set(shared) == {(i, j) for i in range(5) for j in range(5)}
    assert len(set(shared.values())) < 20 and all(shared[point] == point for point in shared.values())
    solved = {}
    for (i, j), representative in shared.items():
        if nuclear[i] == 0.0 or l1[j] == 0.0:
            continue  # least squares, whichever part carries it
        for a, b in ((i, j), representative):
            if (a, b) not in solved:
                found = low_rank_plus_sparse(moments, nuclear[a], l1[b], tol=1e-9)
                solved[a, b] = found.low_rank + found.sparse
        np.testing.assert_allclose(solved[i, j], solved[representative], atol=1e-3)
    assert _shared_points(np.array([math.inf]), np.array([0.3, 0.1]), 16) == {(0, 0): (0, 0), (0, 1): (0, 1)}
    assert _shared_points(np.array([0.5, 0.3]), np.array([math.inf]), 16) == {(0, 0): (0, 0), (1, 0): (1, 0)}


# -- too few rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [LassoVAR(2), NuclearVAR(2), LocalVAR(2), LocalVAR(2, 0.1, 0.1, "cv"), LassoVAR(2, [0.2, 0.1]),
     FedVAR(2, 1), FedVAR(2, "auto", l1_penalty=0.1), FedVAR(2, 1, l1_penalty=0.1, step="cv"),
     FedVAR(2, 1, l1_penalty=0.1, init="local")],
    ids=lambda model: repr(model).replace(" ", "").replace("\n", ""),
)  # fmt: skip
def test_too_few_rows_say_how_many_are_needed(series, model):
    short = {"north": series["north"][:25]}
    with pytest.raises(DataError, match=r"'north' has 25 rows.* needs 26"):
        model.fit(short)
    # The number named is enough.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit({"north": series["north"][:26]})


@pytest.mark.parametrize("missing", [slice(0, 40, 2), slice(40, 60, 2)], ids=["before the origins", "at the origins"])
def test_no_usable_row_is_an_error_of_the_data(series, missing):
    y = series["north"][:60].copy()
    y[missing] = np.nan
    with pytest.raises(DataError, match="'north'"):
        LassoVAR(1, n_origins=20).fit(fv.Panel.from_arrays({"north": y}, missing="drop"))


# -- FedVAR --------------------------------------------------------------------------------------------------------


def local_parts(data, **options):
    return LocalVAR(1, tol=1e-6, **options).fit(data).low_rank_


def test_the_rank_is_the_vote_of_the_clients(series):
    fitted = FedVAR(1, "auto", l1_penalty=0.2, **FEW).fit(series)
    votes = {}
    for name, low in local_parts(series, **FEW).items():
        choice = select_rank(np.linalg.svd(low, compute_uv=False), len(series[name]) - 1, 1, 4)
        votes[name] = choice.rank
    assert fitted.client_ranks_ == votes and fitted.rank_ == vote(votes) > 0
    assert np.linalg.matrix_rank(fitted.A0_) == fitted.rank_
    same = FedVAR(1, vote(votes), l1_penalty=0.2).fit(series)
    np.testing.assert_array_equal(fitted.A0_, same.A0_)
    assert same.client_ranks_ == {}


@pytest.mark.parametrize("init", ["spectral", "local"])
@pytest.mark.parametrize("solver", ["rounds", "exact"])
def test_nothing_shared_is_a_legal_outcome(noise, init, solver):
    assert not any(low.any() for low in local_parts(noise, **ONCE).values())
    fitted = FedVAR(1, "auto", init=init, shared_solver=solver, l1_penalty=0.2, **ONCE).fit(noise)
    assert fitted.rank_ == 0 and fitted.client_ranks_ == dict.fromkeys(NAMES) and not fitted.A0_.any()
    alone = LassoVAR(1, 0.2, tol=1e-8).fit(noise)
    for name in NAMES:
        np.testing.assert_allclose(fitted.coef_[name], alone.coef_[name], atol=1e-3)
    assert np.isfinite(fitted.forecast_values(3)["west"]).all()
    fitted.update({name: y[:2] for name, y in noise.items()})
    fitted.add_client("south", noise["west"])
    assert fitted.rank_ == 0 and "rank 0" in fitted.summary()
    np.testing.assert_allclose(fitted.frozen().fit(noise).A0_, 0.0)


def test_the_local_start_is_that_of_the_longest_client(series):
    fitted = FedVAR(1, 1, init="local", l1_penalty=0.2, n_rounds=1, **FEW).fit(series)
    start = local_parts({"north": series["north"]}, **FEW)["north"]
    assert start.any()
    np.testing.assert_allclose(fitted.local_start_, start, atol=1e-10)
    given = FedVAR(1, 1, init=start, l1_penalty=0.2, n_rounds=1).fit(series)
    np.testing.assert_allclose(fitted.A0_, given.A0_, atol=1e-10)
    spectral = FedVAR(1, 1, l1_penalty=0.2, n_rounds=1).fit(series)
    assert np.abs(fitted.A0_ - spectral.A0_).max() > 1e-3
    np.testing.assert_allclose(fitted.frozen().fit(series).A0_, fitted.A0_, atol=1e-10)


def test_a_zero_local_start_falls_back_and_says_so(noise):
    model = FedVAR(1, 1, init="local", l1_penalty=0.2, n_rounds=2, **ONCE)
    with pytest.warns(ZeroStartWarning, match="'north'"):
        fitted = model.fit(noise)
    np.testing.assert_array_equal(fitted.A0_, FedVAR(1, 1, l1_penalty=0.2, n_rounds=2).fit(noise).A0_)
    np.testing.assert_array_equal(fitted.frozen().fit(noise).A0_, fitted.A0_)


@pytest.mark.parametrize("penalty", [0.2, "rate", [0.3, 0.1]])
def test_the_step_is_that_with_the_smallest_summed_error(series, penalty):
    model = FedVAR(1, 1, step="cv", l1_penalty=penalty, n_rounds=2, **FEW).fit(series)
    moments = {name: fv.lagged_moments(standardized(y), 1) for name, y in series.items()}
    origins = {name: origins_of(standardized(y), 1, 8, 4) for name, y in series.items()}
    options = SharedOptions(rank=1, n_rounds=2, tol=1e-12)
    given = {name: 2 * math.sqrt(math.log(4) / m.n_rows) for name, m in moments.items()}
    given = given if penalty == "rate" else penalty
    totals = []
    for factor in _STEP_FACTORS:
        paths = tune_shared(origins, replace(options, step_factor=factor), given, False).paths
        totals.append(sum(path.errors.min() for path in paths.values()))
    best = _STEP_FACTORS[int(np.argmin(totals))]
    assert model.step_factor_ == best
    safe = FedVAR(1, 1, l1_penalty=0.2, n_rounds=2).fit(series).step_
    assert model.step_ == pytest.approx(best * safe, rel=1e-12)
    fixed = FedVAR(1, 1, step=model.step_, l1_penalty=dict(model.l1_penalty_), n_rounds=2).fit(series)
    for name in NAMES:
        np.testing.assert_allclose(model.coef_[name], fixed.coef_[name], atol=1e-12)
        np.testing.assert_allclose(model.frozen().fit(series).coef_[name], model.coef_[name], atol=1e-12)


def test_a_tuned_step_with_the_closed_form_can_be_frozen(series):
    model = FedVAR(1, 1, step="cv", shared_solver="exact", l1_penalty=0.2, **FEW).fit(series)
    np.testing.assert_allclose(model.frozen().fit(series).A0_, model.A0_)


def test_penalties_of_the_deviations_by_hand(series):
    # The whole method at every fit: reduced-rank regression of all clients' rows, then lassos.
    grid = [0.5, 0.2, 0.05]
    model = FedVAR(1, 1, shared_solver="exact", l1_penalty=grid, **FEW).fit(series)
    scaled = {name: standardized(y) for name, y in series.items()}
    shared = []
    for start in (0, 4):
        parts = [design(z[: len(z) - 8 + start], 1) for z in scaled.values()]
        shared.append(ridge_reduced_rank(np.vstack([r for r, _ in parts]), np.vstack([x for _, x in parts]), 1, 0.0))
    for name, z in scaled.items():
        want = []
        for penalty in grid:
            left = iter(shared)

            def fit(response, x, penalty=penalty, left=left):
                a0 = next(left)
                return a0 + lasso_rows(response, x, penalty, a0)

            want.append(rolling_errors(z, 1, 8, 4, fit))
        np.testing.assert_allclose(model.tuning_[name]["errors"], want, rtol=5e-3)
        assert model.l1_penalty_[name] == grid[int(np.argmin(want))]


# -- FedVAR under privacy ------------------------------------------------------------------------------------------


def private(**options):
    options = {"n_rounds": 2, "random_state": 0, **FEW, **options}
    return FedVAR(1, privacy=fv.Privacy(2.0, 1e-5, reproducible=True, calibration="paper"), **options)


def releases(model):
    kept = {}
    for release in model.privacy_report_.ledger.releases():
        kept.setdefault(release.what, {})[release.client] = release
    return kept


def test_private_penalties_are_tuned_on_the_noisy_matrix(series):
    model = private(rank=1).fit(series)
    assert np.abs(model.A0_ - FedVAR(1, 1, l1_penalty=0.2, n_rounds=2).fit(series).A0_).max() > 0.05
    for name, y in series.items():
        z = standardized(y)
        response, x = design(z[:-8], 1)
        largest = np.abs(2.0 / len(x) * (response - x @ model.A0_.T).T @ x).max()
        assert model.tuning_[name]["l1_penalty"][0] == pytest.approx(largest)
        want = [
            rolling_errors(z, 1, 8, 4, lambda r, x, p=p: model.A0_ + lasso_rows(r, x, p, model.A0_))
            for p in model.tuning_[name]["l1_penalty"][[0, 4, 7]]
        ]
        np.testing.assert_allclose(model.tuning_[name]["errors"][[0, 4, 7]], want, rtol=1e-2)


def test_the_ledger_names_what_left_without_noise(series):
    plain = releases(private(rank=1).fit(series))
    assert not any("vote" in what or "local" in what or "tuning" in what for what in plain)
    everything = releases(private(rank="auto", init="local", step="cv").fit(series))
    assert set(everything["rank vote"]) == set(NAMES) and set(everything["local start"]) == {"north"}
    (tuning,) = [what for what in everything if "tuning" in what]
    assert set(everything[tuning]) == set(NAMES)
    for what in ("rank vote", "local start", tuning):
        for release in everything[what].values():
            assert release.sigma == 0.0 and release.mu == math.inf and release.n_numbers >= 1


# -- FedVAR's updates ----------------------------------------------------------------------------------------------


@pytest.fixture
def halves(series):
    return {name: y[:-4] for name, y in series.items()}, {name: y[-4:] for name, y in series.items()}


def test_an_update_keeps_what_was_chosen(series, halves):
    model = FedVAR(1, step="cv", n_rounds=2, **FEW).fit(halves[0])
    kept = (dict(model.l1_penalty_), model.rank_, dict(model.client_ranks_), model.step_factor_, model.tuning_)
    model.update(halves[1])
    assert (model.l1_penalty_, model.rank_, model.client_ranks_, model.step_factor_, model.tuning_) == kept
    safe = FedVAR(1, 1, l1_penalty=0.2, n_rounds=2).fit(series).step_
    assert model.step_ == pytest.approx(model.step_factor_ * safe)
    same = FedVAR(1, model.rank_, step=model.step_, l1_penalty=kept[0], n_rounds=2).fit(series)
    np.testing.assert_allclose(model.coef_["west"], same.coef_["west"], atol=1e-9)


@pytest.mark.parametrize(
    ("fitted_with", "changed"),
    [({}, {"l1_penalty": 0.3}), ({"rank": "auto"}, {"rank": 2, "l1_penalty": 0.3}),
     ({}, {"l1_penalty": "rate"}), ({"step": "cv"}, {"step": 0.1, "l1_penalty": 0.3}),
     ({"step": "cv"}, {"step": "auto", "l1_penalty": 0.3}),
     ({"init": "local"}, {"init": "spectral", "l1_penalty": 0.3})],
)  # fmt: skip
def test_an_update_takes_options_that_were_changed(series, halves, fitted_with, changed):
    model = FedVAR(1, **({"rank": 1, "n_rounds": 1} | fitted_with), **FEW).fit(halves[0])
    model.set_params(**changed).update(halves[1])
    want = FedVAR(1, **({"rank": 1, "n_rounds": 1} | changed)).fit(series)
    assert model.rank_ == want.rank_ and model.l1_penalty_ == pytest.approx(want.l1_penalty_)
    np.testing.assert_allclose(model.A0_, want.A0_, atol=1e-9)
    for name in NAMES:
        np.testing.assert_allclose(model.coef_[name], want.coef_[name], atol=1e-9)


def test_a_new_client_is_tuned_too(series):
    model = FedVAR(1, 1, **FEW).fit({name: series[name] for name in NAMES[:2]})
    model.add_client("north", series["north"])
    z = standardized(series["north"])
    grid = penalty_grid(fv.solvers.fista.largest_penalty(fv.lagged_moments(z[:-8], 1), model.A0_))
    errors = [rolling_errors(z, 1, 8, 4, lambda r, x, p=p: model.A0_ + lasso_rows(r, x, p, model.A0_)) for p in grid]
    assert model.l1_penalty_["north"] == pytest.approx(grid[int(np.argmin(errors))])
    assert set(model.tuning_) == set(NAMES)
