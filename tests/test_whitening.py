"""Whitened coordinates: against dense algebra, and what they do to the rounds of Stage I."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedvar_fast as fv
from fedvar_fast.exceptions import DataError, OptionError
from fedvar_fast.federation.inprocess import SharedOptions, fit_shared
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import lagged_moments
from fedvar_fast.privacy.mechanism import Privacy
from fedvar_fast.solvers.riemannian import clipped_gradient_pair, exact_reduced_rank
from fedvar_fast.solvers.whitening import PRECONDITIONERS, whitener


def covariance(size, condition, seed):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    return (basis * np.geomspace(condition, 1.0, size)) @ basis.T


def dense(white, size):
    return white.times(np.eye(size))


@pytest.mark.parametrize("kind", PRECONDITIONERS)
@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), seed=st.integers(0, 2**31), condition=st.floats(1.0, 1e4))
def test_times_and_inverse_are_one_symmetric_matrix(kind, size, seed, condition):
    white = whitener(covariance(size, condition, seed), kind)
    p = dense(white, size)
    np.testing.assert_allclose(p, p.T, atol=1e-12 * white.norm)
    np.testing.assert_allclose(white.inverse_times(p), np.eye(size), atol=1e-9)
    assert np.linalg.eigvalsh(p)[0] > 0
    assert white.norm == pytest.approx(np.linalg.norm(p, 2), rel=1e-9)


def test_the_full_whitener_is_the_inverse_root():
    s = covariance(8, 300.0, 1)
    p = dense(whitener(s, "full"), 8)
    np.testing.assert_allclose(p @ s @ p, np.eye(8), atol=1e-11)


def test_the_diagonal_whitener_gives_unit_variances():
    s = covariance(6, 50.0, 2)
    p = dense(whitener(s, "diagonal"), 6)
    np.testing.assert_allclose(np.diag(p @ s @ p), 1.0)


def test_nystroem_takes_the_large_eigenvalues():
    s = covariance(60, 1.0, 3) + 500.0 * np.outer(*[np.ones(60) / np.sqrt(60)] * 2)
    p = dense(whitener(s, "nystrom", sketch_size=10), 60)
    values = np.linalg.eigvalsh(p @ s @ p)
    assert np.linalg.cond(s) > 400 and values[-1] / values[0] < 1.3
    whole = dense(whitener(s, "nystrom", sketch_size=60), 60)
    np.testing.assert_allclose(whole @ s @ whole, np.eye(60), atol=1e-6)


def test_the_floor_raises_small_eigenvalues():
    s = np.diag([4.0, 1.0, -0.5])
    for kind in ("full", "diagonal"):
        np.testing.assert_allclose(dense(whitener(s, kind, floor=0.25), 3), np.diag([0.5, 1.0, 2.0]), atol=1e-12)


def test_points_go_there_and_back():
    rng = np.random.default_rng(4)
    point = FixedRank.from_dense(rng.standard_normal((5, 8)), 2)
    for kind in PRECONDITIONERS:
        white = whitener(covariance(8, 30.0, 5), kind)
        inside = white.to_whitened(point)
        np.testing.assert_allclose(inside.dense(), white.inverse_times(point.dense()), atol=1e-12)
        np.testing.assert_allclose(inside.u.T @ inside.u, np.eye(2), atol=1e-12)
        np.testing.assert_allclose(white.from_whitened(inside).dense(), point.dense(), atol=1e-12)


def test_moments_and_rows_in_whitened_coordinates():
    rng = np.random.default_rng(6)
    y = rng.standard_normal((200, 4)) @ rng.standard_normal((4, 4))
    center, scale, order = rng.standard_normal(4), rng.uniform(0.5, 2, 4), 2
    z = (y - center) / scale
    moments = lagged_moments(z, order)
    x = np.hstack([z[order - lag : len(z) - lag] for lag in (1, 2)])
    for kind in PRECONDITIONERS:
        white = whitener(moments.xx / moments.n_rows, kind)
        w = x @ dense(white, 8)
        inside = white.whitened(moments, ridge=0.3)
        p = dense(white, 8)
        np.testing.assert_allclose(inside.xx, p @ (moments.xx + 0.3 * moments.n_rows * np.eye(8)) @ p, atol=1e-9)
        np.testing.assert_allclose(inside.yx, z[order:].T @ w, atol=1e-9)
        np.testing.assert_allclose(white.row_squares(y, center, scale, order), np.sum(w**2, axis=1), rtol=1e-10)
    y[50, 1] = np.nan
    squares = white.row_squares(y, center, scale, order)
    assert np.flatnonzero(np.isnan(squares)).tolist() == [49, 50]


@pytest.mark.parametrize("kind", PRECONDITIONERS)
@pytest.mark.parametrize("clip", [1.5, np.inf])
def test_the_clipped_pair_is_that_of_whitened_rows(kind, clip):
    rng = np.random.default_rng(7)
    y, order, rank = rng.standard_normal((150, 4)) @ rng.standard_normal((4, 4)), 2, 2
    center, scale = y.mean(axis=0), y.std(axis=0)
    y[20, 2] = np.nan
    z = (y - center) / scale
    white = whitener(covariance(8, 40.0, 8), kind)
    point = FixedRank.from_dense(rng.standard_normal((4, 8)), rank)
    x = np.hstack([z[order - lag : len(z) - lag] for lag in (1, 2)])
    keep = np.isfinite(x).all(axis=1) & np.isfinite(z[order:]).all(axis=1)
    w, target = (x @ dense(white, 8))[keep], z[order:][keep]
    total, inside = np.zeros((4, 8)), 0
    for row, one in zip(w, target, strict=True):
        tangent = point.project(np.outer(point.dense() @ row - one, row))
        norm = tangent.norm()
        inside += norm <= clip
        total += min(1.0, clip / norm) * point.embed(tangent)
    pair, n_inside, n_rows = clipped_gradient_pair(point, y, center, scale, order, clip, 2, white)
    np.testing.assert_allclose(point.embed(pair), 2.0 / keep.sum() * total, atol=1e-12)
    assert (n_inside, n_rows) == (inside, keep.sum())


# -- rounds --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hard():
    """Moments of condition number above 50: non-normal, spectral radius 0.8."""
    panel, truth = fv.simulate_panel(
        3, 12, 1, 3000, 2, deviation_ratio=0.1, stability=0.8, stability_measure="spectral_radius", random_state=1
    )
    moments = {name: lagged_moments(one.values - one.values.mean(axis=0), 1) for name, one in panel.items()}
    return moments, truth


def pooled(moments):
    n_rows = sum(one.n_rows for one in moments.values())
    return tuple(sum(getattr(one, part) for one in moments.values()) / n_rows for part in ("xx", "yx"))


@pytest.mark.parametrize("ridge", [0.0, 0.2])
def test_five_whitened_rounds_do_where_plain_ones_need_hundreds(hard, ridge):
    moments, _ = hard
    xx, yx = pooled(moments)
    assert np.linalg.cond(xx) > 50
    exact = exact_reduced_rank(xx, yx, 2, ridge).dense()

    def excess(coef):
        def loss(a):
            return np.trace(a @ xx @ a.T) - 2 * np.sum(a * yx) + ridge * np.sum(a**2)

        return (loss(coef) - loss(exact)) / -loss(exact)

    for kind in ("full", "nystrom"):
        fit = fit_shared(moments, SharedOptions(2, n_rounds=5, ridge=ridge, precondition=kind))
        assert abs(excess(fit.point.dense())) < 1e-6 if kind == "full" else excess(fit.point.dense()) < 1e-2
    plain = fit_shared(moments, SharedOptions(2, n_rounds=5, ridge=ridge))
    assert excess(plain.point.dense()) > 1e-3


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_long_whitened_rounds_meet_the_closed_form(hard, kind):
    moments, _ = hard
    exact = exact_reduced_rank(*pooled(moments), 2).dense()
    fit = fit_shared(moments, SharedOptions(2, n_rounds=3000, precondition=kind, tol=1e-14))
    np.testing.assert_allclose(fit.point.dense(), exact, atol=1e-7)
    assert fit.gradient_norm < 1e-7


def test_a_given_start_is_taken_into_whitened_coordinates(hard):
    moments, truth = hard
    fit = fit_shared(moments, SharedOptions(2, n_rounds=3, precondition="full", start=truth.A0))
    np.testing.assert_allclose(fit.point.dense(), exact_reduced_rank(*pooled(moments), 2).dense(), atol=1e-3)


def test_the_estimator_takes_it(hard):
    panel, _ = fv.simulate_panel(2, 6, 2, 300, 2, random_state=1)
    exact = fv.FedVAR(2, 2, shared_solver="exact", l1_penalty=0.1).fit(panel)
    white = fv.FedVAR(2, 2, precondition="full", n_rounds=5, l1_penalty=0.1).fit(panel)
    np.testing.assert_allclose(white.A0_, exact.A0_, atol=1e-8)
    with pytest.raises(OptionError, match="precondition"):
        fv.FedVAR(2, 2, precondition="some").fit(panel)


def test_refusals(hard):
    moments, _ = hard
    with pytest.raises(OptionError, match="calibration='total'"):
        fit_shared(
            moments, SharedOptions(2, precondition="full"), Privacy(1.0, 1e-5, calibration="paper"), random_state=1
        )
    with pytest.raises(OptionError, match="unknown"):
        whitener(np.eye(3), "sparse")
    with pytest.raises(OptionError, match="sketch_size"):
        whitener(np.eye(3), "nystrom", sketch_size=4)
    with pytest.raises(DataError, match="constant"):
        whitener(np.zeros((3, 3)), "full")
