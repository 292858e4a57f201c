"""Fixed-rank matrices and their tangent vectors against dense formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import project_dense, truncate

from fedvar_fast import randomized_svd
from fedvar_fast.exceptions import OptionError
from fedvar_fast.lowrank import FixedRank, TangentVector, leading_triplets, singular_value_threshold

quick = settings(max_examples=40, deadline=None)


def made(seed, dim=5, width=9, rank=2):
    rng = np.random.default_rng(seed)
    point = FixedRank.from_dense(rng.standard_normal((dim, width)), rank)
    return rng, point, rng.standard_normal((dim, width))


def with_spectrum(rng, shape, values):
    u = np.linalg.qr(rng.standard_normal((shape[0], len(values))))[0]
    v = np.linalg.qr(rng.standard_normal((shape[1], len(values))))[0]
    return (u * values) @ v.T


@quick
@given(dim=st.integers(1, 7), width=st.integers(1, 12), data=st.data(), seed=st.integers(0, 999))
def test_tangent_projection(dim, width, data, seed):
    rank = data.draw(st.integers(1, min(dim, width)))
    _, point, gradient = made(seed, dim, width, rank)
    tangent = point.project(gradient)
    dense = project_dense(point.dense(), gradient, rank)
    np.testing.assert_allclose(point.embed(tangent), dense, atol=1e-10)
    np.testing.assert_allclose(point.u.T @ tangent.column_part, 0.0, atol=1e-12)
    assert tangent.norm() == pytest.approx(np.linalg.norm(dense), abs=1e-10)
    assert tangent.n_numbers == rank * (dim + width)
    again = point.project(point.embed(tangent))  # a projection leaves what it has projected
    np.testing.assert_allclose(again.row_part, tangent.row_part, atol=1e-10)
    np.testing.assert_allclose(again.column_part, tangent.column_part, atol=1e-10)


def test_the_projection_is_orthogonal():
    rng, point, gradient = made(1)
    other = point.embed(point.project(rng.standard_normal((5, 9))))
    assert np.sum((gradient - point.embed(point.project(gradient))) * other) == pytest.approx(0.0, abs=1e-12)


def test_tangent_vectors_are_a_vector_space():
    rng, point, gradient = made(2)
    a, b = point.project(gradient), point.project(rng.standard_normal((5, 9)))
    want = 2.0 * point.embed(a) - 0.5 * point.embed(b)
    np.testing.assert_allclose(point.embed(2.0 * a + b * -0.5), want, atol=1e-13)


@quick
@given(dim=st.integers(1, 7), width=st.integers(1, 12), data=st.data(), seed=st.integers(0, 999))
def test_retraction_is_the_truncated_svd(dim, width, data, seed):
    rank = data.draw(st.integers(1, min(dim, width)))
    _, point, gradient = made(seed, dim, width, rank)
    tangent = point.project(gradient)
    moved = point.dense() - 0.2 * point.embed(tangent)
    got = point.retract(tangent, 0.2)
    assert np.linalg.norm(moved - got.dense()) == pytest.approx(
        np.linalg.norm(moved - truncate(moved, rank)), abs=1e-10
    )
    np.testing.assert_allclose(got.u.T @ got.u, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(got.v.T @ got.v, np.eye(rank), atol=1e-12)
    assert np.all(np.diff(got.s) <= 1e-14)


def test_a_zero_step_stays():
    _, point, gradient = made(3)
    np.testing.assert_allclose(point.retract(point.project(gradient), 0.0).dense(), point.dense(), atol=1e-13)


def test_from_dense_and_rank_zero():
    rng = np.random.default_rng(4)
    a = rng.standard_normal((6, 4))
    for rank in range(1, 5):
        point = FixedRank.from_dense(a, rank)
        np.testing.assert_allclose(point.dense(), truncate(a, rank), atol=1e-12)
        assert point.rank == rank and point.shape == (6, 4)
    zero = FixedRank.from_dense(a, 0)
    assert zero.rank == 0 and zero.shape == (6, 4)
    np.testing.assert_array_equal(zero.dense(), np.zeros((6, 4)))
    tangent = zero.project(a)
    assert tangent.norm() == 0.0 and tangent.n_numbers == 0
    np.testing.assert_array_equal(zero.retract(tangent, 1.0).dense(), np.zeros((6, 4)))
    assert zero.sign_fixed() is zero
    for rank in (-1, 5):
        with pytest.raises(OptionError, match="rank"):
            FixedRank.from_dense(a, rank)


def test_sign_fixed():
    _, point, _ = made(5)
    flipped = FixedRank(point.u * [-1, 1], point.s, point.v * [-1, 1])
    for one in (point, flipped):
        fixed = one.sign_fixed()
        np.testing.assert_allclose(fixed.dense(), point.dense(), atol=1e-14)
        assert np.all(fixed.u[np.argmax(np.abs(fixed.u), axis=0), [0, 1]] > 0)
    np.testing.assert_array_equal(point.sign_fixed().u, flipped.sign_fixed().u)


def test_leading_triplets_of_a_large_matrix():
    rng = np.random.default_rng(6)
    values = np.r_[np.array([5.0, 3.0, 2.0]), 0.1 * np.ones(20)]
    a = with_spectrum(rng, (520, 530), values)  # above the size for which everything is computed
    u, s, v = leading_triplets(a, 3)
    np.testing.assert_allclose(s, values[:3], rtol=1e-12)
    np.testing.assert_allclose((u * s) @ v.T, truncate(a, 3), atol=1e-10)


def test_leading_triplets_where_lanczos_starts_badly():
    # Rows and columns that sum to zero: the flat start vector is orthogonal to every leading triplet.
    rng = np.random.default_rng(7)
    a = with_spectrum(rng, (514, 514), np.array([4.0, 2.0, 1.0, 0.5]))
    a -= a.mean(axis=0)
    a -= a.mean(axis=1, keepdims=True)
    u, s, v = leading_triplets(a, 2)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[:2], rtol=1e-10)
    np.testing.assert_allclose((u * s) @ v.T, truncate(a, 2), atol=1e-9)


# -- randomised SVD ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (30, 30), (1, 9), (9, 1)])
@pytest.mark.parametrize("decay", [0.5, 0.8])
def test_randomized_svd_on_decaying_spectra(shape, decay):
    small = min(shape)
    a = with_spectrum(np.random.default_rng(8), shape, decay ** np.arange(small))
    rank = min(5, small)
    u, s, vt = randomized_svd(a, rank)
    exact = np.linalg.svd(a, compute_uv=False)
    np.testing.assert_allclose(s, exact[:rank], rtol=1e-8)
    np.testing.assert_allclose((u * s) @ vt, truncate(a, rank), atol=1e-6)
    np.testing.assert_allclose(u.T @ u, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(vt @ vt.T, np.eye(rank), atol=1e-12)


def test_randomized_svd_is_exact_at_low_rank_and_repeatable():
    rng = np.random.default_rng(9)
    a = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 70))
    u, s, vt = randomized_svd(a, 3, n_power_iter=0)
    np.testing.assert_allclose((u * s) @ vt, a, atol=1e-10)
    for first, second in zip(randomized_svd(a, 3), randomized_svd(a, 3), strict=True):
        np.testing.assert_array_equal(first, second)
    generator = np.random.default_rng(1)
    np.testing.assert_allclose(randomized_svd(a, 2, random_state=generator)[1], s[:2], rtol=1e-9)


def test_randomized_svd_takes_other_arrays():
    a = np.arange(12).reshape(3, 4)
    for same in (a, a.tolist(), np.asfortranarray(a), a.astype(np.float32)):
        u, s, vt = randomized_svd(same, 3)
        np.testing.assert_allclose((u * s) @ vt, a, atol=1e-12)


def test_randomized_svd_refuses():
    for rank in (0, -1, 4):
        with pytest.raises(OptionError, match="rank"):
            randomized_svd(np.ones((3, 5)), rank)
    with pytest.raises(OptionError, match="rank"):
        randomized_svd(np.ones(3), 1)
    with pytest.raises(OptionError, match="n_oversamples"):
        randomized_svd(np.ones((3, 5)), 1, n_oversamples=-1)


# -- singular value threshold --------------------------------------------------------------------------------------


def dense_prox(a, threshold):
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    return (u * np.maximum(s - threshold, 0.0)) @ vt


@pytest.mark.parametrize("guess", [None, 0, 1, 3, 6, 40])
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.6, 2.5, 100.0])
def test_singular_value_threshold_is_the_prox(guess, threshold):
    a = with_spectrum(np.random.default_rng(10), (70, 80), 3.0 * 0.7 ** np.arange(70))
    got = singular_value_threshold(a, threshold, guess)
    np.testing.assert_allclose(got.dense(), dense_prox(a, threshold), atol=1e-8)
    assert np.all(got.s > 0)
    assert got.rank == np.sum(np.linalg.svd(a, compute_uv=False) > threshold)


@pytest.mark.parametrize("guess", [0, 2, 5])
def test_a_wrong_guess_does_no_harm_on_a_flat_spectrum(guess):
    # Nothing decays, so a sketch says little: the full decomposition has to decide.
    a = with_spectrum(np.random.default_rng(11), (100, 100), np.linspace(1.1, 0.9, 100))
    np.testing.assert_allclose(singular_value_threshold(a, 1.0, guess).dense(), dense_prox(a, 1.0), atol=1e-8)
    np.testing.assert_allclose(singular_value_threshold(a, 1.05, guess).dense(), dense_prox(a, 1.05), atol=1e-8)


def test_an_accepted_guess_is_accurate():
    # The worst the acceptance test lets pass: a tail just below the threshold in Frobenius norm.
    values = np.r_[1.02, np.full(11, 0.29), np.zeros(48)]
    a = with_spectrum(np.random.default_rng(12), (60, 60), values)
    np.testing.assert_allclose(singular_value_threshold(a, 1.0, 1).dense(), dense_prox(a, 1.0), atol=1e-6)


def test_singular_value_threshold_refuses_a_negative_one():
    for threshold in (-1.0, np.nan):
        with pytest.raises(OptionError, match="threshold"):
            singular_value_threshold(np.eye(3), threshold)


def test_a_tangent_vector_is_frozen():
    tangent = TangentVector(np.ones((1, 2)), np.ones((3, 1)))
    with pytest.raises(AttributeError):
        tangent.row_part = np.zeros((1, 2))
