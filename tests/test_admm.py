"""Low rank plus sparse by ADMM: an independent convex solver, optimality, the gap, the kernels' twins."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import design, stable_series

import fedvar_fast as fv
from fedvar_fast import kernels
from fedvar_fast.exceptions import ConvergenceWarning, OptionError
from fedvar_fast.kernels import _reference as reference
from fedvar_fast.solvers.admm import FactoredMoments, largest_nuclear_penalty, low_rank_plus_sparse
from fedvar_fast.solvers.fista import largest_penalty

cp = pytest.importorskip("cvxpy")
door = pytest.importorskip("fedvar_fast.kernels._door")

TOL = 1e-8
#: (nuclear, l1) as parts of their zero thresholds; both parts are there at all of them, L in most.
PARTS = [(0.15, 0.05), (0.3, 0.15)]
NAMES = ("Indiana", "Illinois", "DNK", "simulated", "one variable", "short")
#: Without DNK, whose COM equals its CPI: there the default number of steps is not always enough.
REGULAR = tuple(name for name in NAMES if name != "DNK")


def standardized(y):
    return (y - y.mean(axis=0)) / y.std(axis=0)


@pytest.fixture(scope="module")
def problems(data_dir):
    """Scaled series and their orders."""

    def read(*parts):
        return standardized(pd.read_csv(data_dir.joinpath(*parts)).iloc[:, 1:].to_numpy())

    rng = np.random.default_rng(0)
    return {
        "Indiana": (read("great_lakes", "Indiana.csv"), 1),
        "Illinois": (read("great_lakes", "Illinois.csv"), 1),
        "DNK": (read("macro", "DNK.csv"), 1),
        "simulated": (standardized(stable_series(rng, 200, 8, 2, radius=0.8)[0]), 2),
        "one variable": (standardized(stable_series(rng, 60, 1, 3)[0]), 3),
        "short": (standardized(stable_series(rng, 14, 5, 3)[0]), 3),
    }


def penalties(moments, parts):
    return parts[0] * largest_nuclear_penalty(moments), parts[1] * largest_penalty(moments)


class Oracle:
    """Equation (4) for an interior-point solver, from the data by QR, not from moments."""

    def __init__(self, y, order):
        self.y, self.x = design(y, order)
        self.dim = self.y.shape[1]
        self.r = np.linalg.qr(np.hstack([self.x, self.y]), mode="r")

    def objective(self, low, sparse, nuclear, l1):
        """Of given matrices; infinite penalties of zero parts cost nothing."""
        loss = np.sum((self.y - self.x @ (low + sparse).T) ** 2) / len(self.x)
        loss += nuclear * np.linalg.svd(low, compute_uv=False).sum() if math.isfinite(nuclear) else 0.0
        return loss + (l1 * np.abs(sparse).sum() if math.isfinite(l1) else 0.0)

    def solve(self, nuclear, l1, box=None):
        low, sparse = cp.Variable((self.dim, self.x.shape[1])), cp.Variable((self.dim, self.x.shape[1]))
        width, rows = self.x.shape[1], len(self.x)
        factor = self.r / math.sqrt(rows)
        loss = cp.sum_squares(factor[:, :width] @ (low + sparse).T - factor[:, width:])
        bounds = [] if box is None else [cp.abs(low) <= box]
        problem = cp.Problem(cp.Minimize(loss + nuclear * cp.normNuc(low) + l1 * cp.sum(cp.abs(sparse))), bounds)
        accuracy = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "may be inaccurate" below 1e-10: compared to 1e-7 here
            return float(problem.solve(solver=cp.CLARABEL, **accuracy))


# -- against cvxpy -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", NAMES)
def test_objective_is_that_of_an_interior_point_solver(problems, name, parts):
    y, order = problems[name]
    moments, oracle = fv.lagged_moments(y, order), Oracle(y, order)
    nuclear, l1 = penalties(moments, parts)
    found = low_rank_plus_sparse(moments, nuclear, l1, tol=TOL)
    want = oracle.solve(nuclear, l1)
    assert found.objective == pytest.approx(want, rel=1e-7)
    assert oracle.objective(found.low_rank, found.sparse, nuclear, l1) == pytest.approx(found.objective, rel=1e-10)
    assert 0.0 <= found.gap <= TOL


@pytest.mark.parametrize("name", ["Indiana", "DNK", "simulated", "one variable", "short"])
def test_with_an_active_and_an_idle_box(problems, name):
    y, order = problems[name]
    moments, oracle = fv.lagged_moments(y, order), Oracle(y, order)
    # The box lies on the low-rank part, which is to be there: a large l1 penalty.
    nuclear, l1 = penalties(moments, (0.15, 0.4) if name != "one variable" else (0.2, 0.3))
    free = low_rank_plus_sparse(moments, nuclear, l1, tol=TOL)
    largest = np.abs(free.low_rank).max()
    assert largest > 0
    idle = low_rank_plus_sparse(moments, nuclear, l1, 1.5 * largest, tol=TOL)
    assert idle.objective == pytest.approx(free.objective, rel=1e-7)
    active = low_rank_plus_sparse(moments, nuclear, l1, 0.4 * largest, tol=TOL)
    assert np.abs(active.low_rank).max() <= 0.4 * largest + 1e-9
    assert active.objective > free.objective * (1 + 1e-6)
    assert active.objective == pytest.approx(oracle.solve(nuclear, l1, 0.4 * largest), rel=1e-7)
    assert oracle.objective(active.low_rank, active.sparse, nuclear, l1) == pytest.approx(active.objective, rel=1e-10)
    assert active.gap <= TOL


def test_clipping_after_the_threshold_is_not_a_minimiser(problems):
    # method.md, section 3: a d=8, p=2 problem with an active box.
    y, order = problems["simulated"]
    moments, oracle = fv.lagged_moments(y, order), Oracle(y, order)
    nuclear, l1 = penalties(moments, (0.1, 0.3))
    box = 0.4 * np.abs(low_rank_plus_sparse(moments, nuclear, l1).low_rank).max()
    quadratic, linear = 2 * moments.xx / moments.n_rows, 2 * moments.yx / moments.n_rows
    step = 1.0 / (2.0 * np.linalg.norm(quadratic, 2))
    low, sparse = np.zeros_like(linear), np.zeros_like(linear)
    for _ in range(5000):
        gradient = (low + sparse) @ quadratic - linear
        u, s, vt = np.linalg.svd(low - step * gradient, full_matrices=False)
        low = np.clip((u * np.maximum(s - step * nuclear, 0.0)) @ vt, -box, box)
        sparse = reference.soft_threshold(sparse - step * gradient, step * l1)
    heuristic = oracle.objective(low, sparse, nuclear, l1)
    found = low_rank_plus_sparse(moments, nuclear, l1, box, tol=1e-9)
    assert found.objective == pytest.approx(oracle.solve(nuclear, l1, box), rel=1e-7)
    assert found.objective < heuristic * (1 - 1e-5)


# -- optimality ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGULAR)
def test_gradient_is_within_both_balls(problems, name):
    y, order = problems[name]
    response, x = design(y, order)
    moments = fv.lagged_moments(y, order)
    for parts in PARTS:
        nuclear, l1 = penalties(moments, parts)
        found = low_rank_plus_sparse(moments, nuclear, l1, tol=1e-10)
        gradient = -2.0 / len(x) * (response - x @ (found.low_rank + found.sparse).T).T @ x
        assert np.linalg.norm(gradient, 2) <= nuclear * (1 + 1e-3)
        assert np.abs(gradient).max() <= l1 * (1 + 1e-3)
        # Complementarity, to the accuracy that a gap of 1e-10 gives.
        assert -np.vdot(gradient, found.sparse) == pytest.approx(l1 * np.abs(found.sparse).sum(), abs=1e-7)
        norm = np.linalg.svd(found.low_rank, compute_uv=False).sum()
        assert -np.vdot(gradient, found.low_rank) == pytest.approx(nuclear * norm, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("box", [None, 0.3, 0.0])
def test_gap_bounds_the_suboptimality_also_early(problems, name, box):
    y, order = problems[name]
    moments = fv.lagged_moments(y, order)
    factored = FactoredMoments(moments)
    nuclear, l1 = penalties(moments, (0.1, 0.1))
    if box is not None:
        box *= np.abs(low_rank_plus_sparse(factored, nuclear, 3 * l1, tol=1e-6).low_rank).max()
    for l1_penalty in (l1, 3 * l1):
        # Nothing lies below the best objective less its own gap.
        best = low_rank_plus_sparse(factored, nuclear, l1_penalty, box, tol=1e-9, max_iter=5000, warn=False)
        for max_iter in (1, 10, 20, 50, 200):
            early = low_rank_plus_sparse(factored, nuclear, l1_penalty, box, tol=1e-12, max_iter=max_iter, warn=False)
            suboptimality = early.objective - best.objective
            assert suboptimality <= early.gap * factored.energy + 1e-12
            assert suboptimality >= -best.gap * factored.energy - 1e-12
            if box is not None:
                assert np.abs(early.low_rank).max() <= box + 1e-12


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(1, 4), order=st.integers(1, 3), rows=st.integers(2, 40), seed=st.integers(0, 9999), data=st.data()
)
def test_gap_on_random_problems(dim, order, rows, seed, data):
    rng = np.random.default_rng(seed)
    moments = fv.lagged_moments(rng.standard_normal((rows + order, dim)), order)
    nuclear = data.draw(st.floats(0.01, 1.2)) * largest_nuclear_penalty(moments)
    l1 = data.draw(st.floats(0.01, 1.2)) * largest_penalty(moments)
    box = data.draw(st.one_of(st.none(), st.floats(0.0, 0.5)))
    factored = FactoredMoments(moments)
    good = low_rank_plus_sparse(factored, nuclear, l1, box, tol=1e-8, max_iter=5000, warn=False)
    assert good.gap <= 1e-8
    for max_iter in (10, 30):
        early = low_rank_plus_sparse(factored, nuclear, l1, box, tol=1e-12, max_iter=max_iter, warn=False)
        assert early.objective - good.objective <= early.gap * factored.energy + 1e-12
        # The lower bounds of all iterates lie below the objectives of all others.
        assert early.objective >= good.objective - good.gap * factored.energy - 1e-12


# -- special cases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Indiana", "simulated", "short"])
def test_zero_thresholds(problems, name):
    y, order = problems[name]
    moments = fv.lagged_moments(y, order)
    dim, width = moments.yx.shape
    top, top_l1 = largest_nuclear_penalty(moments), largest_penalty(moments)
    assert top == pytest.approx(2 * np.linalg.svd(moments.yx, compute_uv=False)[0] / moments.n_rows)
    both = low_rank_plus_sparse(moments, 0.2 * top, 0.2 * top * (1 + 1e-6))
    assert np.abs(both.sparse).max() <= 1e-6 and np.abs(both.low_rank).max() > 0.01
    l1 = 0.2 * top_l1
    both = low_rank_plus_sparse(moments, l1 * math.sqrt(dim * width) * (1 + 1e-6), l1)
    assert np.abs(both.low_rank).max() <= 1e-6 and np.abs(both.sparse).max() > 0.01
    for nuclear, l1 in ((1.0001 * top, math.inf), (math.inf, 1.0001 * top_l1), (1.0001 * top, 1.0001 * top_l1)):
        nothing = low_rank_plus_sparse(moments, nuclear, l1)
        assert not nothing.low_rank.any() and not nothing.sparse.any()
        assert nothing.objective == pytest.approx(np.trace(moments.yy) / moments.n_rows) and nothing.gap <= 1e-8
    assert low_rank_plus_sparse(moments, 0.999 * top, math.inf).low_rank.any()
    assert low_rank_plus_sparse(moments, math.inf, 0.999 * top_l1).sparse.any()


@pytest.mark.parametrize("name", REGULAR)
def test_infinite_penalties_leave_a_part_out(problems, name):
    y, order = problems[name]
    moments = fv.lagged_moments(y, order)
    nuclear, l1 = penalties(moments, (0.15, 0.15))
    low = low_rank_plus_sparse(moments, nuclear, math.inf)
    assert not low.sparse.any() and low.gap <= TOL
    # A sparse part that costs as much as the nuclear norm is zero too.
    assert low.objective == pytest.approx(low_rank_plus_sparse(moments, nuclear, nuclear).objective, rel=1e-7)
    sparse = low_rank_plus_sparse(moments, math.inf, l1)
    assert not sparse.low_rank.any()
    lasso = fv.lasso_on_moments(moments, l1, tol=1e-10).coef
    assert sparse.objective == pytest.approx(moments.loss(lasso) + l1 * np.abs(lasso).sum(), rel=1e-7)
    # A box of width zero does the same.
    assert low_rank_plus_sparse(moments, nuclear, l1, 0.0).objective == pytest.approx(sparse.objective, rel=1e-7)
    nothing = low_rank_plus_sparse(moments, math.inf, math.inf)
    assert not (nothing.low_rank.any() or nothing.sparse.any()) and nothing.gap == 0.0
    assert nothing.objective == pytest.approx(np.trace(moments.yy) / moments.n_rows)


def test_a_zero_series_has_a_zero_solution():
    found = low_rank_plus_sparse(fv.lagged_moments(np.zeros((20, 3)), 2), 0.1, 0.1)
    assert not found.low_rank.any() and not found.sparse.any() and found.objective == 0.0 and found.gap == 0.0


def test_a_constant_column_is_left_at_zero(problems):
    y = problems["simulated"][0].copy()
    y[:, 3] = 0.0
    moments = fv.lagged_moments(y, 2)
    found = low_rank_plus_sparse(moments, *penalties(moments, (0.15, 0.05)))
    total = found.low_rank + found.sparse
    assert found.gap <= TOL
    assert np.abs(total[3]).max() <= 1e-7 and np.abs(total[:, [3, 11]]).max() <= 1e-7


# -- invariances, warm starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("box", [None, 0.05])
@pytest.mark.parametrize("name", ["Indiana", "Illinois", "simulated"])
def test_warm_starts_meet_the_same_optimum(problems, name, box):
    y, order = problems[name]
    factored = FactoredMoments(fv.lagged_moments(y, order))
    nuclear, l1 = penalties(factored.moments, (0.15, 0.2))
    state = None
    for part in (4.0, 2.0, 1.0):
        warm = low_rank_plus_sparse(factored, part * nuclear, part * l1, box, start=state, tol=TOL)
        state = warm.state
    cold = low_rank_plus_sparse(factored, nuclear, l1, box, tol=TOL)
    assert warm.objective == pytest.approx(cold.objective, rel=1e-7)
    again = low_rank_plus_sparse(factored, nuclear, l1, box, start=state, tol=TOL)
    assert again.n_iter <= 20 and again.objective == pytest.approx(cold.objective, rel=1e-7)
    copies = state.copies.copy()
    low_rank_plus_sparse(factored, 2 * nuclear, l1, box, start=state)
    np.testing.assert_array_equal(state.copies, copies)


def test_moments_and_their_factorisation_give_the_same(problems):
    moments = fv.lagged_moments(*problems["simulated"])
    one, other = (low_rank_plus_sparse(p, 0.3, 0.2) for p in (moments, FactoredMoments(moments)))
    np.testing.assert_array_equal(one.low_rank, other.low_rank)
    np.testing.assert_array_equal(one.sparse, other.sparse)


@pytest.mark.parametrize("factor", [1e-6, 1e3])
@pytest.mark.parametrize("box", [None, 0.08])
def test_units_of_the_data_do_not_matter(problems, factor, box):
    y, order = problems["simulated"]
    moments, scaled = fv.lagged_moments(y, order), fv.lagged_moments(factor * y, order)
    nuclear, l1 = penalties(moments, (0.15, 0.1))
    one = low_rank_plus_sparse(moments, nuclear, l1, box, tol=1e-10)
    other = low_rank_plus_sparse(scaled, factor**2 * nuclear, factor**2 * l1, box, tol=1e-10)
    assert other.objective == pytest.approx(factor**2 * one.objective, rel=1e-9)
    np.testing.assert_allclose(other.low_rank + other.sparse, one.low_rank + one.sparse, atol=1e-5)


def test_twice_the_rows_or_other_columns_change_nothing(problems):
    y, order = problems["simulated"]
    moments = fv.lagged_moments(y, order)
    nuclear, l1 = penalties(moments, (0.15, 0.1))
    want = low_rank_plus_sparse(moments, nuclear, l1, 0.1).objective
    twice = replace(moments, **{k: 2 * getattr(moments, k) for k in ("xx", "yx", "yy", "x_sum", "y_sum", "n_rows")})
    assert low_rank_plus_sparse(twice, nuclear, l1, 0.1).objective == pytest.approx(want, rel=1e-9)
    mixed = fv.lagged_moments(np.ascontiguousarray(y[:, ::-1]), order)
    assert low_rank_plus_sparse(mixed, nuclear, l1, 0.1).objective == pytest.approx(want, rel=1e-7)


# -- bad input -----------------------------------------------------------------------------------------------------


def test_too_few_steps_warn(problems):
    moments = fv.lagged_moments(*problems["DNK"])
    with pytest.warns(ConvergenceWarning, match="relative duality gap"):
        found = low_rank_plus_sparse(moments, 0.1, 0.05, max_iter=10)
    assert found.gap > TOL and found.n_iter == 10
    assert low_rank_plus_sparse(moments, 0.1, 0.05, max_iter=10, warn=False).gap == found.gap


@pytest.mark.parametrize("name", ["nuclear_penalty", "l1_penalty", "max_entry"])
@pytest.mark.parametrize("value", [-0.1, math.nan, -math.inf])
def test_bad_penalties(problems, name, value):
    moments = fv.lagged_moments(*problems["one variable"])
    with pytest.raises(OptionError, match=name):
        low_rank_plus_sparse(moments, **({"nuclear_penalty": 0.1, "l1_penalty": 0.1} | {name: value}))


@pytest.mark.parametrize("tol", [math.nan, -1.0])
def test_bad_tolerances(problems, tol):
    with pytest.raises(OptionError, match="tol"):
        low_rank_plus_sparse(fv.lagged_moments(*problems["one variable"]), 0.1, 0.1, tol=tol, max_iter=50, warn=False)


# -- kernels -------------------------------------------------------------------------------------------------------


def admm_case(rng, dim, width, has, rho=0.7):
    """Arguments as `low_rank_plus_sparse` makes them, at a random state; columns of zeros among them."""
    x = rng.standard_normal((3 * width + 1, width))
    if width > 2:
        x[:, 1] = 0.0
    quadratic = 2.0 * x.T @ x / len(x)
    has_low, has_sparse, has_box = has
    copies = 2.0 if has_box else 1.0
    coupling, share = rho * copies / (1 + copies), 1 / (1 + copies)
    if not has_sparse:
        coupling, share = copies * rho, 1.0
    elif not has_low:
        coupling, share = rho, 0.0
    inverse = np.linalg.inv(quadratic + coupling * np.eye(width))
    constant = rng.standard_normal((dim, width)) @ inverse
    state = rng.standard_normal((2, 3, dim, width))
    return inverse, constant, coupling, share, state


HAS = [(True, True, True), (True, True, False), (True, False, True), (True, False, False), (False, True, False)]


@pytest.mark.parametrize("has", HAS)
@pytest.mark.parametrize(("dim", "width"), [(1, 1), (1, 4), (2, 2), (3, 9), (12, 12), (7, 28)])
# Threshold 1e-9 goes through a full decomposition, 0 too; 50 leaves nothing.
@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.4, 50.0])
def test_admm_meets_its_twin(has, dim, width, threshold):
    inverse, constant, coupling, share, state = admm_case(np.random.default_rng(dim + width), dim, width, has)
    got, want = state.copy(), state.copy()
    residuals, expected = np.zeros(4), np.zeros(4)
    for arrays, out, kernel in ((got, residuals, door.admm), (want, expected, reference.admm)):
        kernel(inverse, constant, coupling, share, threshold, 0.3, 0.5, *has, 4, 1.6, arrays[0], arrays[1], out)
    np.testing.assert_allclose(got, want, atol=1e-9)
    np.testing.assert_allclose(residuals, expected, atol=1e-8)
    for part, there in enumerate(has):
        if not there:
            np.testing.assert_array_equal(got[:, part], state[:, part])


def lasso_case(rng, dim, width):
    x = rng.standard_normal((2 * width + 3, width))
    if width > 2:
        x[:, 2] = 0.0  # a constant column: zero diagonal
    if width > 4:
        x[:, 4] = x[:, 3]  # twice the same
    y = rng.standard_normal((len(x), dim))
    return x.T @ x, y.T @ x, np.sum(y**2, axis=0), float(len(x))


@pytest.mark.parametrize(("dim", "width"), [(1, 1), (1, 6), (4, 4), (5, 20)])
@pytest.mark.parametrize("penalty", [0.05, 0.3, 50.0])
def test_coordinate_lasso_meets_its_twin(dim, width, penalty):
    rng = np.random.default_rng(width)
    xx, linear, energy, n_rows = lasso_case(rng, dim, width)
    for start in (np.zeros_like(linear), rng.standard_normal(linear.shape)):
        before = start.copy()
        coef, gaps, sweeps = door.coordinate_lasso(xx, linear, energy, n_rows, penalty, start, 5000, 1e-13)
        twin, _, _ = reference.coordinate_lasso(xx, linear, energy, n_rows, penalty, start, 5000, 1e-13)
        np.testing.assert_array_equal(start, before)
        # Equal columns may share a coefficient in any way: compare what they fit.
        np.testing.assert_allclose(coef @ xx, twin @ xx, atol=1e-5)
        np.testing.assert_allclose(np.abs(coef).sum(axis=1), np.abs(twin).sum(axis=1), atol=1e-6)
        assert np.all(gaps <= 1e-12 * energy) and np.all(sweeps < 5000)
        if width > 2:
            assert not coef[:, 2].any()
        if penalty == 50.0:
            assert not coef.any()


def test_coordinate_lasso_arrives_from_any_start(problems):
    moments = fv.lagged_moments(*problems["DNK"])
    penalty, energy = 0.1 * largest_penalty(moments), np.diag(moments.yy).copy()
    for start in (np.zeros_like(moments.yx), np.linalg.solve(moments.xx, moments.yx.T).T):
        args = (moments.xx, moments.yx, energy, moments.n_rows, penalty, start, 2000, 1e-8)
        assert np.all(door.coordinate_lasso(*args)[1] <= 1e-8 * energy / moments.n_rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coordinate_lasso_takes_any_layout_and_dtype(dtype):
    xx, linear, energy, n_rows = lasso_case(np.random.default_rng(5), 4, 8)
    xx, linear, energy = (a.astype(dtype) for a in (xx, linear, energy))
    exact = [np.ascontiguousarray(a, dtype=np.float64) for a in (xx, linear, energy)]
    want = door.coordinate_lasso(*exact, n_rows, 0.1, np.zeros((4, 8)), 500, 1e-6)
    start = np.zeros((4, 8), dtype=dtype, order="F")
    got = door.coordinate_lasso(
        np.asfortranarray(xx), np.asfortranarray(linear), np.repeat(energy, 2)[::2], n_rows, 0.1, start, 500, 1e-6
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_coordinate_lasso_does_not_depend_on_threads_and_stops_where_told():
    rng = np.random.default_rng(6)
    xx, linear, energy, n_rows = lasso_case(rng, 23, 40)
    with kernels.one_blas_thread():
        first, *others = [
            door.coordinate_lasso(xx, linear, energy, n_rows, 0.1, np.zeros((23, 40)), 300, 1e-9, n) for n in (1, 2, 5)
        ]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    start = rng.standard_normal((23, 40))
    start[:, 2] = 0.0
    unmoved, _, sweeps = door.coordinate_lasso(xx, linear, energy, n_rows, 0.1, start, 0, 1e-9)
    np.testing.assert_array_equal(unmoved, start)
    assert not sweeps.any()
    _, gaps, sweeps = door.coordinate_lasso(xx, linear, energy, n_rows, 1e-3, start, 3, 1e-12)
    assert np.all(sweeps <= 3) and np.all(gaps > 0)
