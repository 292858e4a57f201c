"""Both stages' solvers against dense formulas and scikit-learn."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    design,
    lasso_objective,
    lasso_rows,
    plain_fista,
    project_dense,
    quadratic,
    ridge_reduced_rank,
    stable_series,
    stage_one,
    truncate,
)

from fedvar_fast import lagged_moments, lasso_on_moments
from fedvar_fast.exceptions import ConvergenceWarning, OptionError
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.solvers.fista import largest_penalty
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState, exact_reduced_rank, gradient_pair

quick = settings(max_examples=25, deadline=None)


def problem(seed=0, n_rows=120, dim=4, order=2):
    rng = np.random.default_rng(seed)
    y, _ = stable_series(rng, n_rows, dim, order)
    response, x = design(y, order)
    return rng, response, x, lagged_moments(y, order)


# -- Stage II ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("with_offset", [False, True])
def test_converged_lasso_meets_scikit_learn(share, with_offset):
    rng, y, x, moments = problem(1)
    offset = 0.3 * rng.standard_normal((4, 8)) if with_offset else None
    penalty = share * largest_penalty(moments, offset)
    result = lasso_on_moments(moments, penalty, offset, tol=1e-12)
    want = lasso_rows(y, x, penalty, offset)
    np.testing.assert_allclose(result.coef, want, atol=1e-6)
    ours, theirs = (lasso_objective(y, x, coef, penalty, offset) for coef in (result.coef, want))
    np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("n_steps", [0, 1, 20])
def test_plain_steps_are_fista(n_steps, with_offset):
    rng, y, x, moments = problem(2)
    offset = 0.3 * rng.standard_normal((4, 8)) if with_offset else None
    result = lasso_on_moments(moments, 0.1, offset, tol=None, max_iter=n_steps)
    np.testing.assert_allclose(result.coef, plain_fista(y, x, 0.1, n_steps, offset), atol=1e-12)
    np.testing.assert_array_equal(result.n_iter, n_steps)
    start = rng.standard_normal((4, 8))
    kept = start.copy()
    result = lasso_on_moments(moments, 0.1, offset, tol=None, max_iter=n_steps, start=start)
    np.testing.assert_allclose(result.coef, plain_fista(y, x, 0.1, n_steps, offset, start), atol=1e-12)
    np.testing.assert_array_equal(start, kept)


def test_a_factored_offset_is_the_dense_one():
    rng, _, _, moments = problem(3)
    point = FixedRank.from_dense(rng.standard_normal((4, 8)), 2)
    dense, thin = (lasso_on_moments(moments, 0.05, one, tol=1e-10) for one in (point.dense(), point))
    np.testing.assert_allclose(thin.coef, dense.coef, atol=1e-9)
    assert largest_penalty(moments, point) == pytest.approx(largest_penalty(moments, point.dense()), rel=1e-12)


@quick
@given(seed=st.integers(0, 999), share=st.floats(0.01, 1.2), n_steps=st.integers(0, 40))
def test_the_gap_bounds_the_distance_to_the_optimum(seed, share, n_steps):
    rng, y, x, moments = problem(seed, n_rows=40)
    penalty = share * largest_penalty(moments)
    result = lasso_on_moments(moments, penalty, tol=None, max_iter=n_steps, start=rng.standard_normal((4, 8)))
    primal = lasso_objective(y, x, result.coef, penalty)
    optimum = lasso_objective(y, x, lasso_on_moments(moments, penalty, tol=1e-13, max_iter=50_000).coef, penalty)
    assert np.all(primal - optimum >= -1e-10)
    assert np.all(result.row_gaps >= primal - optimum - 1e-10)
    at_zero = np.trace(moments.yy) / moments.n_rows
    assert result.gap == pytest.approx(np.sum(result.row_gaps) / at_zero, rel=1e-9)


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9])
def test_the_tolerance_is_kept_row_by_row(tol):
    _, _, _, moments = problem(4)
    result = lasso_on_moments(moments, 0.02, tol=tol)
    assert np.all(result.row_gaps <= tol * np.diag(moments.yy) / moments.n_rows)
    assert np.all(result.n_iter < 10_000)


def test_singular_moments():
    # Duplicate columns, and fewer rows than lags: many coefficients do, one objective.
    rng = np.random.default_rng(5)
    for z in (np.repeat(rng.standard_normal((60, 2)), 2, axis=1), rng.standard_normal((12, 6))):
        response, x = design(z, 3)
        moments = lagged_moments(z, 3)
        penalty = 0.2 * largest_penalty(moments)
        got = lasso_objective(
            response, x, lasso_on_moments(moments, penalty, tol=1e-10, max_iter=100_000).coef, penalty
        )
        want = lasso_objective(response, x, lasso_rows(response, x, penalty), penalty)
        np.testing.assert_allclose(got, want, rtol=1e-8)


@pytest.mark.parametrize("with_offset", [False, True])
def test_largest_penalty_is_where_zero_begins(with_offset):
    rng, y, x, moments = problem(6)
    offset = 0.3 * rng.standard_normal((4, 8)) if with_offset else np.zeros((4, 8))
    limit = largest_penalty(moments, offset)
    assert limit == pytest.approx(np.max(np.abs(2 / len(x) * (y - x @ offset.T).T @ x)), rel=1e-12)
    for tol in (None, 1e-9):
        above = lasso_on_moments(moments, 1.000001 * limit, offset, tol=tol, max_iter=500)
        np.testing.assert_array_equal(above.coef, 0.0)
        assert above.gap == pytest.approx(0.0, abs=1e-14)
        below = lasso_on_moments(moments, 0.99 * limit, offset, tol=tol and 1e-13, max_iter=500)
        assert np.count_nonzero(below.coef) >= 1


def test_no_penalty_is_least_squares():
    _, y, x, moments = problem(7)
    result = lasso_on_moments(moments, 0.0, tol=None, max_iter=5000)
    np.testing.assert_allclose(result.coef, np.linalg.lstsq(x, y, rcond=None)[0].T, atol=1e-8)


def test_no_penalty_converges_and_says_so():
    # A penalty of 0 is legal; at the optimum, to rounding, the default tolerance must count as reached.
    _, y, x, moments = problem(7)
    result = lasso_on_moments(moments, 0.0)
    np.testing.assert_allclose(result.coef, np.linalg.lstsq(x, y, rcond=None)[0].T, atol=1e-2)
    assert result.gap <= 1e-6


def test_no_variation_at_all():
    moments = lagged_moments(np.zeros((20, 3)), 2)
    result = lasso_on_moments(moments, 0.1)
    np.testing.assert_array_equal(result.coef, 0.0)
    assert result.gap == 0.0 and largest_penalty(moments) == 0.0


def test_a_start_at_the_solution_stays():
    _, _, _, moments = problem(8)
    first = lasso_on_moments(moments, 0.05, tol=1e-10)
    again = lasso_on_moments(moments, 0.05, tol=1e-10, start=first.coef)
    np.testing.assert_array_equal(again.n_iter, 0)
    np.testing.assert_array_equal(again.coef, first.coef)


def test_convergence_warning():
    _, _, _, moments = problem(9)
    with pytest.warns(ConvergenceWarning, match="3 steps"):
        result = lasso_on_moments(moments, 0.01, tol=1e-12, max_iter=3)
    assert result.gap > 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lasso_on_moments(moments, 0.01, tol=None, max_iter=3)


def test_threads_change_nothing():
    rng = np.random.default_rng(10)
    y, _ = stable_series(rng, 300, 70)
    moments = lagged_moments(y, 1)
    one, two, four = (lasso_on_moments(moments, 0.05, tol=1e-8, n_jobs=n) for n in (1, 2, 4))
    for other in (two, four):
        np.testing.assert_array_equal(one.coef, other.coef)
        np.testing.assert_array_equal(one.row_gaps, other.row_gaps)
        np.testing.assert_array_equal(one.n_iter, other.n_iter)


@pytest.mark.parametrize(
    "options",
    [
        *({"l1_penalty": value} for value in (-1.0, np.nan, np.inf)),
        *({"tol": value} for value in (-1.0, np.nan)),
        *({"max_iter": value} for value in (-1, 2.0, True)),
        *({"solver": "cd"}, {"start": np.zeros((2, 2))}, {"n_jobs": 0}),
    ],
)
def test_bad_lasso_options(options):
    _, _, _, moments = problem(11)
    with pytest.raises(OptionError):
        lasso_on_moments(moments, **({"l1_penalty": 0.1} | options))


def test_no_usable_row():
    with pytest.raises(OptionError, match="no usable row"):
        lasso_on_moments(lagged_moments(np.full((9, 2), np.nan), 1), 0.1)


# -- Stage I: gradient pairs and rounds ----------------------------------------------------------------------------


@quick
@given(seed=st.integers(0, 999), rank=st.integers(0, 4))
def test_gradient_pair_and_loss(seed, rank):
    rng, y, x, moments = problem(seed, n_rows=30)
    point = FixedRank.from_dense(rng.standard_normal((4, 8)), rank)
    pair, loss = gradient_pair(point, moments)
    errors = x @ point.dense().T - y
    assert loss == pytest.approx(np.mean(np.sum(errors**2, axis=1)), rel=1e-10)
    assert loss == pytest.approx(moments.loss(point.dense()), rel=1e-10)
    if rank:
        gradient = 2 / len(x) * errors.T @ x
        np.testing.assert_allclose(point.embed(pair), project_dense(point.dense(), gradient, rank), atol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 0.4])
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_rounds_are_the_papers(rank, ridge):
    rng = np.random.default_rng(12)
    clients = [lagged_moments(stable_series(rng, n, 4, 2)[0], 2) for n in (80, 50, 120)]
    weights = np.array([m.n_rows for m in clients]) / sum(m.n_rows for m in clients)
    start = rng.standard_normal((4, 8))
    component = LowRankComponent(0.05, ridge)
    state = LowRankState(FixedRank.from_dense(start, rank))
    for n_rounds in range(1, 13):
        pairs = [component.message(m, state)[0] for m in clients]
        before, state = state, component.advance(state, component.aggregate(pairs, weights))
        want, _ = stage_one([(m.xx, m.yx, m.n_rows) for m in clients], weights, start, rank, 0.05, n_rounds, ridge)
        np.testing.assert_allclose(state.point.dense(), want, atol=1e-9)
        assert state.n_rounds == n_rounds
        total = component.total_gradient(before, component.aggregate(pairs, weights))
        assert state.change == pytest.approx(0.05 * total.norm() / np.linalg.norm(before.point.dense()))


# -- Stage I: the closed form --------------------------------------------------------------------------------------


def means(moments):
    return moments.xx / moments.n_rows, moments.yx / moments.n_rows


def optimality(point, xx, yx, ridge):
    """Norm of the projected gradient."""
    a = point.dense()
    return point.project(2 * (a @ xx - yx) + 2 * ridge * a).norm()


@quick
@given(seed=st.integers(0, 999), rank=st.integers(1, 4), ridge=st.sampled_from([0.0, 0.01, 1.0, 100.0]))
def test_exact_is_ridge_reduced_rank_regression(seed, rank, ridge):
    rng, y, x, moments = problem(seed, n_rows=60)
    xx, yx = means(moments)
    point = exact_reduced_rank(xx, yx, rank, ridge)
    np.testing.assert_allclose(point.dense(), ridge_reduced_rank(y, x, rank, ridge), atol=1e-8)
    assert optimality(point, xx, yx, ridge) < 1e-9
    np.testing.assert_allclose(point.u.T @ point.u, np.eye(rank), atol=1e-10)
    np.testing.assert_allclose(point.v.T @ point.v, np.eye(rank), atol=1e-10)
    regular = xx + ridge * np.eye(8)
    best = quadratic(point.dense(), regular, yx)
    for scale in (1.0, 0.1, 1e-3):
        other = truncate(point.dense() + scale * rng.standard_normal((4, 8)), rank)
        assert quadratic(other, regular, yx) >= best - 1e-10


def singular_problem(seed):
    rng = np.random.default_rng(seed)
    y, _ = stable_series(rng, 80, 2)
    z = y[:, [0, 1, 0, 1]]  # every variable twice
    response, x = design(z, 2)
    return response, x, lagged_moments(z, 2)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_exact_with_singular_moments(rank):
    y, x, moments = singular_problem(13)
    xx, yx = means(moments)
    point = exact_reduced_rank(xx, yx, rank)
    assert point.rank == rank and np.isfinite(point.dense()).all()
    want = ridge_reduced_rank(y, x, rank, 0.0)
    assert quadratic(point.dense(), xx, yx) == pytest.approx(quadratic(want, xx, yx), rel=1e-9)
    assert np.linalg.norm(point.dense()) <= np.linalg.norm(want) * (1 + 1e-6)  # the minimum-norm answer
    np.testing.assert_allclose(point.dense(), want, atol=1e-6)
    assert optimality(point, xx, yx, 0.0) < 1e-7


def test_exact_with_fewer_rows_than_lags():
    rng = np.random.default_rng(14)
    z = rng.standard_normal((12, 5))
    y, x = design(z, 4)
    xx, yx = means(lagged_moments(z, 4))
    for rank in (1, 3, 5):
        np.testing.assert_allclose(
            exact_reduced_rank(xx, yx, rank).dense(), ridge_reduced_rank(y, x, rank, 0), atol=1e-6
        )


def test_exact_at_the_edges():
    _, _, _, moments = problem(15)
    xx, yx = means(moments)
    assert exact_reduced_rank(xx, yx, 0).rank == 0
    np.testing.assert_allclose(exact_reduced_rank(xx, yx, 4).dense(), yx @ np.linalg.inv(xx), atol=1e-9)
    zero = exact_reduced_rank(np.zeros((8, 8)), np.zeros((4, 8)), 2)
    np.testing.assert_array_equal(zero.dense(), 0.0)
    for rank in (-1, 5):
        with pytest.raises(OptionError, match="rank"):
            exact_reduced_rank(xx, yx, rank)
    for ridge in (-1.0, np.nan, np.inf):
        with pytest.raises(OptionError, match="ridge"):
            exact_reduced_rank(xx, yx, 1, ridge)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_long_rounds_meet_the_exact_answer(ridge):
    _, _, _, moments = problem(16, n_rows=400)
    xx, yx = means(moments)
    exact = exact_reduced_rank(xx, yx, 2, ridge)
    step = 1.0 / (2 * np.linalg.norm(xx, 2) + 2 * ridge)
    component = LowRankComponent(step, ridge)
    state = LowRankState(FixedRank.from_dense(2 * step * yx, 2))
    losses = []
    for _ in range(2000):
        pair, loss = component.message(moments, state)
        losses.append(loss + ridge * float(np.sum(state.point.s**2)))
        state = component.advance(state, pair)
    np.testing.assert_allclose(state.point.dense(), exact.dense(), atol=1e-7)
    assert np.all(np.diff(losses) <= 1e-12)  # 1/H is safe: the loss never rises
