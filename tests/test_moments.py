"""Lagged moments against a dense design matrix."""

from __future__ import annotations

import os
import tracemalloc
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import dense_moments, design

from fedvar_fast import LaggedMoments, lagged_moments
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.moments import largest_eigenvalue

quick = settings(max_examples=25, deadline=None)


def parts(m: LaggedMoments):
    return m.xx, m.yx, m.yy, m.x_sum, m.y_sum


def same(moments, want, tol=1e-11):
    """Equal to (S, C, Q, sum x, sum y, T) or to other moments, relative to the largest entry."""
    numbers, n_rows = (parts(want), want.n_rows) if isinstance(want, LaggedMoments) else (want[:5], want[5])
    assert moments.n_rows == n_rows
    for got, expected in zip(parts(moments), numbers, strict=True):
        scale = max(1.0, float(np.max(np.abs(numbers[0]), initial=0.0)))
        np.testing.assert_allclose(got, expected, atol=tol * scale, rtol=0)


def holes(rng, n_rows, dim, share):
    y = rng.standard_normal((n_rows, dim))
    y[rng.random(n_rows) < share, rng.integers(dim)] = np.nan
    return y


@quick
@given(
    dim=st.integers(1, 5), order=st.integers(1, 5), extra=st.integers(1, 60), jobs=st.integers(1, 4),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_moments_of_whole_series(dim, order, extra, jobs, seed):
    rng = np.random.default_rng(seed)
    y, center = rng.standard_normal((order + extra, dim)), rng.standard_normal(dim)
    moments = lagged_moments(y, order, center=center, n_jobs=jobs)
    same(moments, dense_moments(y, order, center))
    assert (moments.dim, moments.order) == (dim, order)
    np.testing.assert_array_equal(moments.tail, y[-order:])
    same(lagged_moments(y, order), dense_moments(y, order))


@quick
@given(share=st.sampled_from([0.02, 0.2, 0.6, 0.95, 1.0]), order=st.integers(1, 4), seed=st.integers(0, 9999))
def test_missing_rows_are_left_out(share, order, seed):
    y = holes(np.random.default_rng(seed), 40, 3, share)
    same(lagged_moments(y, order, center=np.full(3, 0.3)), dense_moments(y, order, np.full(3, 0.3)))


@pytest.mark.parametrize(
    "missing", [[0], [1], [2], [3], [-1], [-2], [-4], [0, -1], [3, 4, 5, 6], [5, 7, 9, 11], list(range(3, 40))]
)
def test_a_missing_row_at_every_lag_and_end(missing):
    y = np.random.default_rng(3).standard_normal((40, 2))
    y[missing, 1] = np.nan
    same(lagged_moments(y, 3), dense_moments(y, 3))


def test_many_missing_rows_are_taken_back_in_pieces():
    y = holes(np.random.default_rng(4), 9000, 2, 0.5)
    same(lagged_moments(y, 2), dense_moments(y, 2))


def test_all_missing_gives_zero_rows_and_zero_sums():
    moments = lagged_moments(np.full((20, 2), np.nan), 2)
    assert moments.n_rows == 0
    for part in parts(moments):
        np.testing.assert_array_equal(part, 0.0)


# -- chunks, updates -----------------------------------------------------------------------------------------------


@quick
@given(size=st.integers(1, 12), order=st.integers(1, 4), share=st.sampled_from([0.0, 0.2]), seed=st.integers(0, 999))
def test_chunks_of_one_size(size, order, share, seed):
    y = holes(np.random.default_rng(seed), 50, 2, share)
    chunks = (y[i : i + size] for i in range(0, len(y), size))
    moments = lagged_moments(chunks, order, center=np.ones(2))
    same(moments, lagged_moments(y, order, center=np.ones(2)))
    np.testing.assert_array_equal(moments.tail, y[-order:])


@quick
@given(cuts=st.lists(st.integers(0, 50), max_size=8), seed=st.integers(0, 999))
def test_uneven_and_empty_chunks(cuts, seed):
    y = np.random.default_rng(seed).standard_normal((50, 2))
    edges = [0, *sorted(cuts), 50]
    chunks = [y[a:b] for a, b in pairwise(edges)]
    same(lagged_moments(chunks, 3), dense_moments(y, 3))
    same(lagged_moments(iter(chunks), 3), dense_moments(y, 3))


@quick
@given(cut=st.integers(4, 47), share=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 999))
def test_update_is_the_whole(cut, share, seed):
    y = holes(np.random.default_rng(seed), 50, 2, share)
    moments = lagged_moments(y[:cut], 3, center=np.ones(2)).update(y[cut:])
    same(moments, lagged_moments(y, 3, center=np.ones(2)))
    one_by_one = lagged_moments(y[:cut], 3)
    for row in range(cut, len(y)):
        one_by_one = one_by_one.update(y[row : row + 1])
    same(one_by_one, dense_moments(y, 3))


@quick
@given(leaving=st.integers(1, 40), share=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 999))
def test_downdate_is_the_rest(leaving, share, seed):
    y = holes(np.random.default_rng(seed), 50, 2, share)
    moments = lagged_moments(y, 3, center=np.ones(2)).downdate(y[: leaving + 3])
    same(moments, dense_moments(y[leaving:], 3, np.ones(2)))
    same(moments.update(y[:5]), dense_moments(np.vstack([y[leaving:], y[:5]]), 3, np.ones(2)))


@quick
@given(cut=st.integers(4, 46), order=st.integers(1, 3), seed=st.integers(0, 999))
def test_two_halves_lack_the_seam_exactly(cut, order, seed):
    y = np.random.default_rng(seed).standard_normal((50, 2))
    halves = lagged_moments(y[:cut], order) + lagged_moments(y[cut:], order)
    # Responses cut .. cut + p - 1 have lags on the other side; a stretch of 2p rows holds them and no others.
    seam = dense_moments(y[cut - order : cut + order], order)
    whole = dense_moments(y, order)
    same(halves, (*(a - b for a, b in zip(whole[:5], seam[:5], strict=True)), whole[5] - seam[5]))
    np.testing.assert_array_equal(halves.tail, y[-order:])


def test_addition_brings_the_other_to_its_centre():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((30, 2)), rng.standard_normal((20, 2)) + 7.0
    total = lagged_moments(a, 2, center=np.ones(2)) + lagged_moments(b, 2, center=np.full(2, 7.0))
    one, two = dense_moments(a, 2, np.ones(2)), dense_moments(b, 2, np.ones(2))
    same(total, tuple(p + q for p, q in zip(one, two, strict=True)))
    same(sum([lagged_moments(b, 2)], lagged_moments(a, 2)), lagged_moments(a, 2) + lagged_moments(b, 2))


def test_nothing_changes_in_place():
    y = np.random.default_rng(6).standard_normal((40, 2))
    moments = lagged_moments(y, 2)
    before = [part.copy() for part in parts(moments)]
    moments.update(y[:5]), moments.downdate(y[:5]), moments + moments
    moments.recentered(np.ones(2)), moments.standardized(np.ones(2), np.full(2, 3.0))
    for part, kept in zip(parts(moments), before, strict=True):
        np.testing.assert_array_equal(part, kept)
    assert moments.update(y[:0]) is moments


# -- centre and scale, derived numbers -----------------------------------------------------------------------------


@quick
@given(seed=st.integers(0, 999), order=st.integers(1, 3))
def test_recentered_and_standardized(seed, order):
    rng = np.random.default_rng(seed)
    y = holes(rng, 40, 3, 0.1)
    c, s = rng.standard_normal(3), rng.uniform(0.1, 5, 3)
    moments = lagged_moments(y, order, center=rng.standard_normal(3))
    same(moments.recentered(c), dense_moments(y, order, c))
    scaled = moments.standardized(c, s)
    same(scaled, dense_moments((y - c) / s, order))
    np.testing.assert_allclose(scaled.tail, ((y - c) / s)[-order:])
    # The result is a series in its own units: more rows in those units may follow.
    more = rng.standard_normal((6, 3))
    same(scaled.update(more), dense_moments(np.vstack([(y - c) / s, more]), order))


def test_a_large_mean_costs_no_digits_when_centred():
    z = np.random.default_rng(7).standard_normal((20_000, 3))
    center = np.array([1e6, -1e6, 1e6])
    y = z + center
    exact = dense_moments(y - center, 2)
    moments = lagged_moments(y, 2, center=center)
    for got, want in zip(parts(moments), exact[:5], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * len(z))
    # Moving the centre a little afterwards, as an update does, stays accurate as well.
    mean = y.mean(axis=0)
    same(moments.recentered(mean), dense_moments(y - mean, 2), tol=1e-12)


def test_loss_and_residual_covariance():
    rng = np.random.default_rng(8)
    y, coef = rng.standard_normal((60, 3)), rng.standard_normal((3, 6))
    response, x = design(y, 2)
    errors = response - x @ coef.T
    moments = lagged_moments(y, 2)
    assert moments.loss(coef) == pytest.approx(np.mean(np.sum(errors**2, axis=1)), rel=1e-12)
    np.testing.assert_allclose(moments.residual_covariance(coef), errors.T @ errors / len(errors), atol=1e-12)


@pytest.mark.parametrize(("dim", "order"), [(1, 1), (3, 4), (16, 4), (20, 4), (70, 2)])
def test_operator_norm(dim, order):
    y = np.random.default_rng(9).standard_normal((300, dim)).cumsum(axis=0)
    moments = lagged_moments(y, order)
    assert moments.operator_norm() == pytest.approx(np.linalg.norm(moments.xx, 2), rel=1e-10)


def test_operator_norm_where_lanczos_starts_badly():
    pair = np.kron(np.eye(50), np.array([[1.0, -0.8], [-0.8, 1.0]]))  # the flat start is an eigenvector, the wrong one
    for matrix in (pair, np.eye(90), np.diag(np.r_[1.0, np.zeros(99)]), np.zeros((80, 80)), np.zeros((0, 0))):
        want = np.linalg.norm(matrix, 2) if matrix.size else 0.0
        assert largest_eigenvalue(matrix) == pytest.approx(want, rel=1e-9)
    sign = np.r_[np.ones(50), -np.ones(50)]
    assert largest_eigenvalue(np.eye(100) + np.outer(sign, sign)) == pytest.approx(101.0, rel=1e-9)


# -- memory, kinds of input ----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.environ.get("FEDVAR_FAST_KERNELS") == "reference", reason="the NumPy twin makes the matrix")
def test_no_design_matrix_is_made():
    y = np.random.default_rng(10).standard_normal((100_000, 20))
    y[5000, 3] = np.nan
    tracemalloc.start()
    try:
        lagged_moments(y, 4, center=np.ones(20), n_jobs=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5e6  # the series has 16 MB, the design matrix 64 MB


def test_memory_map(tmp_path):
    y = np.random.default_rng(11).standard_normal((3000, 3))
    y.tofile(tmp_path / "series")
    mapped = np.memmap(tmp_path / "series", dtype=np.float64, mode="r", shape=y.shape)
    same(lagged_moments(mapped, 2), dense_moments(y, 2))


@pytest.mark.parametrize("kind", ["F", "float32", "int", "bool", "read-only", "strided", "pandas"])
def test_other_arrays(kind):
    y = (4 * np.random.default_rng(12).standard_normal((40, 3))).astype(np.float32).astype(np.float64)
    y = y.round() if kind == "int" else (y > 0).astype(float) if kind == "bool" else y
    laid_out = {
        "F": np.asfortranarray(y), "float32": y.astype(np.float32), "int": y.astype(np.int16), "bool": y > 0,
        "read-only": y.copy(), "strided": np.repeat(y, 2, axis=0)[::2], "pandas": pd.DataFrame(y),
    }[kind]  # fmt: skip
    if kind == "read-only":
        laid_out.flags.writeable = False
    same(lagged_moments(laid_out, 2), dense_moments(y, 2))


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, -1, 2.5, 2.0, True, "2", None])
def test_bad_order(order):
    with pytest.raises(OptionError, match="order"):
        lagged_moments(np.zeros((9, 2)), order)


def test_too_few_rows():
    for rows in (0, 1, 2):
        with pytest.raises(DataError, match="too few"):
            lagged_moments(np.zeros((rows, 2)), 2)
        with pytest.raises(DataError, match="too few"):
            lagged_moments(iter([np.zeros((rows, 2))]), 2)
    with pytest.raises(DataError, match="too few"):
        lagged_moments(iter([]), 2)
    assert lagged_moments(np.ones((3, 2)), 2).n_rows == 1


def test_bad_values():
    y = np.random.default_rng(13).standard_normal((20, 3))
    for value in (np.inf, -np.inf):
        bad = y.copy()
        bad[4, 1] = value
        with pytest.raises(DataError, match="row 5, column 2"):
            lagged_moments(bad, 1)
        with pytest.raises(DataError, match="infinite"):
            lagged_moments(y, 1).update(bad)
    bad[9, 0] = np.nan
    bad[4, 0] = np.nan
    with pytest.raises(DataError, match="row 5, column 2"):
        lagged_moments(bad, 1)
    for text in (y.astype(str), y.astype(object), y.astype(complex)):
        with pytest.raises(DataTypeError, match="real numbers"):
            lagged_moments(text, 1)
    for shape in ((20,), (20, 0), (2, 3, 4), ()):
        with pytest.raises(DataError, match="table"):
            lagged_moments(np.zeros(shape), 1)


def test_infinities_of_both_signs_in_one_row():
    # Their sum is NaN: still an infinite value to be named, and no warning from NumPy on the way.
    bad = np.ones((20, 3))
    bad[4, :2] = np.inf, -np.inf
    with pytest.raises(DataError, match="row 5, column 1"):
        lagged_moments(bad, 1)


def test_finite_values_whose_sum_overflows_are_finite():
    # Squares overflow, which is the data's fault; whether a value is missing must not be misjudged for that.
    y = np.full((6, 3), 1e308)
    y[3:] = 0.0
    with np.errstate(all="ignore"):
        assert lagged_moments(y, 1).n_rows == 5


def test_bad_chunks_and_centres():
    good = np.ones((9, 2))
    for chunks in ([good, np.ones((4, 3))], [np.ones((1, 2)), np.ones((4, 3))], [good, np.ones(4)]):
        with pytest.raises(DataError):
            lagged_moments(iter(chunks), 2)
    with pytest.raises(DataError):
        lagged_moments(good, 2).update(np.ones((4, 3)))
    for center in (np.zeros(3), np.array([0.0, np.nan]), 0.0):
        with pytest.raises(OptionError, match="center"):
            lagged_moments(good, 2, center=center)
    with pytest.raises(OptionError, match="n_jobs"):
        lagged_moments(good, 2, n_jobs=0)


def test_bad_arithmetic():
    moments = lagged_moments(np.random.default_rng(0).standard_normal((9, 2)), 2)
    for other in (lagged_moments(np.ones((9, 2)), 1), lagged_moments(np.ones((9, 3)), 2)):
        with pytest.raises(OptionError, match="cannot be added"):
            moments + other
    with pytest.raises(TypeError):
        moments + 1
    with pytest.raises(DataError, match="downdate needs"):
        moments.downdate(np.ones((2, 2)))
    with pytest.raises(DataError, match="cannot leave"):
        moments.downdate(np.ones((50, 2)))


@pytest.mark.parametrize("kind", ["float32", ">f8", "int16", "float16", "fortran", "strided"])
def test_other_types_and_layouts_are_converted_piece_by_piece(kind, tmp_path, monkeypatch):
    from fedvar_fast import moments as module

    monkeypatch.setattr(module, "_CONVERTED_VALUES", 200)
    y = np.round(np.random.default_rng(5).standard_normal((400, 6)) * 50)
    laid_out = {"fortran": np.asfortranarray(y), "strided": np.repeat(y, 2, axis=1)[:, ::2]}.get(kind)
    given = y.astype(kind) if laid_out is None else laid_out
    np.save(tmp_path / "y.npy", given)
    for same in (given, np.load(tmp_path / "y.npy", mmap_mode="r")):
        found, want = lagged_moments(same, 3), lagged_moments(y, 3)
        np.testing.assert_allclose(found.xx, want.xx, rtol=1e-12)
        np.testing.assert_allclose(found.yx, want.yx, rtol=1e-12, atol=1e-8)
        assert found.n_rows == want.n_rows


def test_moments_that_cannot_fit_are_refused_before_anything_is_made():
    wide = np.broadcast_to(np.zeros(1), (4, 2_000_000))
    with pytest.raises(OptionError, match=r"moments of order 2 and 2000000 variables need [\d,.]+ GiB"):
        lagged_moments(wide, 2)
