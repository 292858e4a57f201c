"""Compiled kernels against their NumPy twins."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import pool_threads

from fedvar_fast import kernels
from fedvar_fast.exceptions import OptionError
from fedvar_fast.kernels import _reference as reference

door = pytest.importorskip("fedvar_fast.kernels._door")

THREADS = (1, 2, 4)
quick = settings(max_examples=40, deadline=None)


def orders(array):
    """The same values as C, Fortran, strided and read-only arrays."""
    strided = np.zeros(tuple(2 * n for n in array.shape), dtype=array.dtype)
    strided[tuple(slice(None, None, 2) for _ in array.shape)] = array
    frozen = array.copy()
    frozen.flags.writeable = False
    view = strided[tuple(slice(None, None, 2) for _ in array.shape)]
    return {"C": array, "F": np.asfortranarray(array), "strided": view, "read-only": frozen}


LAYOUTS = ("C", "F", "strided", "read-only")


def close(got, want, tol=1e-11):
    for a, b in zip(got, want, strict=True):
        scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
        np.testing.assert_allclose(a, b, atol=tol * scale, rtol=0)


def point(rng, dim, width, rank):
    u = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    v = np.linalg.qr(rng.standard_normal((width, rank)))[0]
    return u, np.sort(rng.uniform(0.5, 2.0, rank))[::-1].copy(), v


def gram(rng, n_rows, width):
    x = rng.standard_normal((n_rows, width))
    return x.T @ x


# -- lagged moments ------------------------------------------------------------------------------------------------


@quick
@given(
    dim=st.integers(1, 6), order=st.integers(1, 4), extra=st.integers(1, 80), seed=st.integers(0, 999),
    threads=st.sampled_from(THREADS),
)  # fmt: skip
def test_lagged_moments_meets_its_twin(dim, order, extra, seed, threads):
    rng = np.random.default_rng(seed)
    y, center = rng.standard_normal((order + extra, dim)), rng.standard_normal(dim)
    close(door.lagged_moments(y, center, order, threads), reference.lagged_moments(y, center, order))


@quick
@given(seed=st.integers(0, 999), share=st.floats(0.0, 1.0))
def test_lagged_moments_reads_missing_values_as_zero(seed, share):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((30, 3))
    y[rng.random(y.shape) < share] = np.nan
    close(door.lagged_moments(y, np.ones(3), 2), reference.lagged_moments(y, np.ones(3), 2))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_lagged_moments_takes_any_layout_and_dtype(layout, dtype):
    y = orders((10 * np.random.default_rng(1).standard_normal((40, 3))).astype(dtype))[layout]
    before = y.copy()
    close(door.lagged_moments(y, np.zeros(3), 2), reference.lagged_moments(y.astype(float), np.zeros(3), 2))
    np.testing.assert_array_equal(y, before)


# 700 rows: one segment; 3,000: a few (each lag a task of its own); 40,000: all 32 segments.
@pytest.mark.parametrize(("n_rows", "dim", "order"), [(700, 5, 3), (3000, 4, 4), (40_000, 3, 2), (2000, 80, 2)])
def test_lagged_moments_does_not_depend_on_threads(n_rows, dim, order):
    y = np.random.default_rng(2).standard_normal((n_rows, dim))
    y[100, 0] = np.nan
    with kernels.one_blas_thread():
        first, *others = [door.lagged_moments(y, np.full(dim, 0.1), order, n) for n in THREADS]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    close(first, reference.lagged_moments(y, np.full(dim, 0.1), order), tol=1e-10)


def test_lagged_moments_matrices_are_symmetric():
    xx, _, yy, *_ = door.lagged_moments(np.random.default_rng(3).standard_normal((2000, 4)), np.zeros(4), 3, 2)
    np.testing.assert_array_equal(xx, xx.T)
    np.testing.assert_array_equal(yy, yy.T)


# -- gradient pair -------------------------------------------------------------------------------------------------


@quick
@given(dim=st.integers(1, 7), order=st.integers(1, 3), data=st.data(), seed=st.integers(0, 999))
def test_gradient_pair_meets_its_twin(dim, order, data, seed):
    rank = data.draw(st.integers(0, dim))
    rng = np.random.default_rng(seed)
    width = dim * order
    u, s, v = point(rng, dim, width, rank)
    args = (u, s, v, gram(rng, 20, width), rng.standard_normal((dim, width)), 20)
    got = door.gradient_pair(*args)
    close(got, reference.gradient_pair(*args))
    assert got[0].shape == (rank, width) and got[1].shape == (dim, rank)
    np.testing.assert_allclose(u.T @ got[1], 0.0, atol=1e-13)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gradient_pair_takes_any_layout_and_dtype(layout, dtype):
    rng = np.random.default_rng(4)
    u, s, v = point(rng, 5, 10, 2)
    arrays = [a.astype(dtype) for a in (u, v, gram(rng, 30, 10), rng.standard_normal((5, 10)))]
    u2, v2, xx, yx = [orders(a)[layout] for a in arrays]
    exact = [a.astype(np.float64) for a in arrays]
    # In single precision the columns are orthonormal to 1e-7 only, which the two formulas use differently.
    tol = 1e-11 if dtype == np.float64 else 1e-5
    close(door.gradient_pair(u2, s, v2, xx, yx, 30), reference.gradient_pair(exact[0], s, *exact[1:], 30), tol)


def test_singular_values_in_any_layout_are_taken_too():
    # The door promises to check dtype and layout once, for every argument.
    rng = np.random.default_rng(4)
    u, s, v = point(rng, 5, 10, 2)
    xx, yx = gram(rng, 30, 10), rng.standard_normal((5, 10))
    for values in (np.repeat(s, 2)[::2], s.astype(np.float32)):
        want = reference.gradient_pair(u, values.astype(float), v, xx, yx, 30)
        close(door.gradient_pair(u, values, v, xx, yx, 30), want)
        row_part, column_part = want[:2]
        got = door.retract(u, values, v, row_part, column_part, 0.1)
        np.testing.assert_allclose(got[1], reference.retract(u, values, v, row_part, column_part, 0.1)[1], atol=1e-10)


# -- soft threshold, FISTA -----------------------------------------------------------------------------------------


@quick
@given(rows=st.integers(0, 5), columns=st.integers(0, 5), threshold=st.floats(0, 3), seed=st.integers(0, 99))
def test_soft_threshold_meets_its_twin(rows, columns, threshold, seed):
    a = np.random.default_rng(seed).standard_normal((rows, columns))
    got = door.soft_threshold(a, threshold)
    np.testing.assert_allclose(got, reference.soft_threshold(a, threshold), atol=1e-15)
    np.testing.assert_array_equal(got == 0, np.abs(a) <= threshold)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_soft_threshold_takes_any_layout_and_dtype(layout, dtype):
    a = (3 * np.random.default_rng(5).standard_normal((4, 6))).astype(dtype)
    got = door.soft_threshold(orders(a)[layout], 1.5)
    np.testing.assert_allclose(got, reference.soft_threshold(a.astype(float), 1.5), atol=1e-15)
    np.testing.assert_allclose(door.soft_threshold(a[0], 1), reference.soft_threshold(a[0].astype(float), 1))


def lasso_problem(rng, dim, width, n_rows=40):
    x, y = rng.standard_normal((n_rows, width)), rng.standard_normal((n_rows, dim))
    xx = x.T @ x
    step = n_rows / (2 * np.linalg.eigvalsh(xx)[-1])
    return xx, y.T @ x, np.sum(y**2, axis=0), float(n_rows), step


@quick
@given(
    dim=st.integers(1, 8), width=st.integers(1, 12), penalty=st.floats(1e-3, 1.0), tol=st.sampled_from([-1.0, 1e-3]),
    max_iter=st.integers(0, 30), threads=st.sampled_from(THREADS), seed=st.integers(0, 999),
)  # fmt: skip
def test_fista_meets_its_twin(dim, width, penalty, tol, max_iter, threads, seed):
    # At penalty 0 the dual point jumps between a gradient of 0 and one of 1e-17: nothing to compare.
    rng = np.random.default_rng(seed)
    xx, linear, energy, n_rows, step = lasso_problem(rng, dim, width)
    start = rng.standard_normal((dim, width))
    args = (xx, linear, energy, n_rows, penalty, step, start, max_iter, tol)
    coef, gaps, steps = door.fista_lasso(*args, n_threads=threads)
    want, want_gaps, want_steps = reference.fista_lasso(*args)
    # A gap within rounding of its target may stop one of the two a step earlier.
    if np.array_equal(steps, want_steps):
        close((coef, gaps), (want, want_gaps), tol=1e-10)
    else:
        assert tol >= 0 and np.max(np.abs(steps - want_steps)) <= 1


@pytest.mark.parametrize("tol", [-1.0, 1e-8])
@pytest.mark.parametrize("penalty", [0.02, 0.4])
def test_fista_does_not_depend_on_threads(tol, penalty):
    args = (*lasso_problem(np.random.default_rng(6), 130, 60, 200),)
    args = (*args[:4], penalty, args[4], np.zeros((130, 60)), 200, tol)
    with kernels.one_blas_thread():
        first, *others = [door.fista_lasso(*args, n_threads=n) for n in THREADS]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    close(first[:2], reference.fista_lasso(*args)[:2], tol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fista_takes_any_layout_and_leaves_its_start_alone(layout):
    rng = np.random.default_rng(7)
    xx, linear, energy, n_rows, step = lasso_problem(rng, 4, 6)
    start = rng.standard_normal((4, 6))
    a, b, c, d = (orders(part)[layout] for part in (xx, linear, energy, start))
    got = door.fista_lasso(a, b, c, n_rows, 0.1, step, d, 7)
    np.testing.assert_array_equal(d, start)
    close(got[:2], reference.fista_lasso(xx, linear, energy, n_rows, 0.1, step, start, 7)[:2])


def test_fista_of_a_zero_gram_matrix_stays_at_zero():
    coef, gaps, _ = door.fista_lasso(np.zeros((3, 3)), np.zeros((2, 3)), np.ones(2), 5, 0.1, 0.0, np.zeros((2, 3)), 9)
    np.testing.assert_array_equal(coef, 0.0)
    np.testing.assert_allclose(gaps, 0.0, atol=1e-15)


# -- factorisations ------------------------------------------------------------------------------------------------


def assert_svd(a, u, s, vt, tol=1e-12):
    scale = max(1.0, float(np.max(np.abs(a), initial=0.0)))
    np.testing.assert_allclose((u * s) @ vt, a, atol=tol * scale * max(a.shape))
    np.testing.assert_allclose(u.T @ u, np.eye(len(s)), atol=1e-12)
    np.testing.assert_allclose(vt @ vt.T, np.eye(len(s)), atol=1e-12)
    assert np.all(s >= 0) and np.all(np.diff(s) <= 1e-14 * scale)


@quick
@given(m=st.integers(1, 30), n=st.integers(1, 30), rank=st.integers(0, 30), seed=st.integers(0, 999))
def test_thin_svd_meets_numpy(m, n, rank, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
    u, s, vt = door.thin_svd(a)
    assert_svd(a, u, s, vt)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-11 * max(1.0, s[0]))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_thin_svd_of_an_empty_matrix(shape):
    u, s, vt = door.thin_svd(np.zeros(shape))
    assert u.shape == (shape[0], 0) and s.shape == (0,) and vt.shape == (0, shape[1])


@quick
@given(k=st.integers(0, 12), extra=st.integers(0, 30), rank=st.integers(0, 12), seed=st.integers(0, 999))
def test_thin_qr_is_a_qr(k, extra, rank, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((k + extra, rank)) @ rng.standard_normal((rank, k))
    q, r = door.thin_qr(a)
    np.testing.assert_allclose(q @ r, a, atol=1e-11)
    np.testing.assert_allclose(q.T @ q, np.eye(k), atol=1e-12)
    np.testing.assert_array_equal(np.tril(r, -1), 0.0)


def test_thin_qr_refuses_a_wide_matrix():
    with pytest.raises(ValueError, match="tall"):
        door.thin_qr(np.zeros((2, 3)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_factorisations_take_any_layout_and_dtype(layout, dtype):
    a = (5 * np.random.default_rng(8).standard_normal((9, 4))).astype(dtype)
    laid_out = orders(a)[layout]
    exact = a.astype(np.float64)
    assert_svd(exact, *door.thin_svd(laid_out))
    q, r = door.thin_qr(laid_out)
    np.testing.assert_allclose(q @ r, exact, atol=1e-12)
    assert_svd(exact, *door.randomized_svd(laid_out, orders(np.eye(4))[layout]))
    np.testing.assert_array_equal(laid_out, a)


@quick
@given(dim=st.integers(1, 8), width=st.integers(1, 16), data=st.data(), seed=st.integers(0, 999))
def test_retract_is_the_dense_truncated_svd(dim, width, data, seed):
    rank = data.draw(st.integers(0, min(dim, width)))  # 2 r > d included
    deficient = data.draw(st.booleans())
    rng = np.random.default_rng(seed)
    u, s, v = point(rng, dim, width, rank)
    row_part = rng.standard_normal((rank, width))
    column_part = rng.standard_normal((dim, rank))
    column_part -= u @ (u.T @ column_part)
    if deficient and rank:
        s[-1] = 0.0
        row_part[-1] = row_part[0]
        column_part[:, -1] = 0.0
    got = door.retract(u, s, v, row_part, column_part, 0.3)
    want = reference.retract(u, s, v, row_part, column_part, 0.3)
    np.testing.assert_allclose(got[1], want[1], atol=1e-11)
    np.testing.assert_allclose(got[0].T @ got[0], np.eye(rank), atol=1e-11)
    np.testing.assert_allclose(got[2].T @ got[2], np.eye(rank), atol=1e-11)
    dense = (u * s) @ v.T - 0.3 * (u @ row_part + column_part @ v.T)
    left = np.linalg.svd(dense, compute_uv=False)[rank:]
    # Best approximation, whether or not the cut falls between equal singular values.
    error = np.linalg.norm(dense - (got[0] * got[1]) @ got[2].T)
    np.testing.assert_allclose(error, np.linalg.norm(left), atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_retract_takes_any_layout(layout):
    rng = np.random.default_rng(9)
    u, s, v = point(rng, 6, 12, 2)
    row_part, column_part = rng.standard_normal((2, 12)), rng.standard_normal((6, 2))
    want = reference.retract(u, s, v, row_part, column_part, 0.1)
    got = door.retract(*(orders(a)[layout] if a.ndim == 2 else a for a in (u, s, v, row_part, column_part)), 0.1)
    np.testing.assert_allclose((got[0] * got[1]) @ got[2].T, (want[0] * want[1]) @ want[2].T, atol=1e-12)


@quick
@given(m=st.integers(1, 30), n=st.integers(1, 30), data=st.data(), power=st.integers(0, 4), seed=st.integers(0, 999))
def test_randomized_svd_meets_its_twin(m, n, data, power, seed):
    width = data.draw(st.integers(1, min(m, n)))
    rng = np.random.default_rng(seed)
    a, sketch = rng.standard_normal((m, n)), rng.standard_normal((n, width))
    u, s, vt = door.randomized_svd(a, sketch, power)
    want = reference.randomized_svd(a, sketch, power)
    np.testing.assert_allclose(s, want[1], atol=1e-9 * max(1.0, s[0]))
    np.testing.assert_allclose((u * s) @ vt, (want[0] * want[1]) @ want[2], atol=1e-8 * max(1.0, s[0]))


def test_randomized_svd_of_zero_and_too_wide():
    _, s, _ = door.randomized_svd(np.zeros((6, 5)), np.ones((5, 2)))
    np.testing.assert_array_equal(s, 0.0)
    with pytest.raises(ValueError, match="wider"):
        door.randomized_svd(np.zeros((6, 5)), np.ones((5, 6)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_number_out_of_no_number(value):
    # NaN or infinity must be an error from LAPACK's callers, never silently a decomposition of NaN.
    a = np.ones((5, 4))
    a[2, 1] = value
    u, s, v = point(np.random.default_rng(0), 5, 4, 2)
    row_part = np.ones((2, 4))
    row_part[0, 0] = value
    with pytest.raises(ArithmeticError, match="NaN or infinity"):
        door.randomized_svd(a, np.eye(4))
    with pytest.raises(ArithmeticError, match="NaN or infinity"):
        door.retract(u, s, v, row_part, np.zeros((5, 2)), 0.1)
    with pytest.raises(ArithmeticError, match="NaN or infinity"):
        door.thin_svd(a)


# -- threads -------------------------------------------------------------------------------------------------------


def test_one_blas_thread_puts_back_what_it_found():
    before = pool_threads()
    with kernels.one_blas_thread():
        assert {count for _, count in pool_threads()} == {1}
        with kernels.one_blas_thread():
            assert {count for _, count in pool_threads()} == {1}
        assert {count for _, count in pool_threads()} == {1}
    assert pool_threads() == before
    with pytest.raises(KeyError), kernels.one_blas_thread():
        raise KeyError
    assert pool_threads() == before


def test_one_blas_thread_overlaps_in_threads():
    before = pool_threads()
    inside, leave, seen = threading.Event(), threading.Event(), []

    def long_holder():
        with kernels.one_blas_thread():
            inside.set()
            leave.wait(20)
            seen.append({count for _, count in pool_threads()})

    thread = threading.Thread(target=long_holder)
    with kernels.one_blas_thread():
        thread.start()
        assert inside.wait(20)
    # The first holder has left, the second is still in: the pools stay down.
    leave.set()
    thread.join(20)
    assert seen == [{1}]
    assert pool_threads() == before


def test_one_blas_thread_under_a_storm():
    before = pool_threads()

    def work():
        for _ in range(50):
            with kernels.one_blas_thread():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool_threads() == before


def test_resolve_n_jobs():
    every = kernels.resolve_n_jobs(None)
    assert every >= 1
    assert kernels.resolve_n_jobs(3) == 3
    assert kernels.resolve_n_jobs(np.int64(2)) == 2
    assert kernels.resolve_n_jobs(-1) == every
    assert kernels.resolve_n_jobs(-2) == max(1, every - 1)
    assert kernels.resolve_n_jobs(-10_000) == 1
    for bad in (0, True, False, 1.0, "2"):
        with pytest.raises(OptionError, match="n_jobs"):
            kernels.resolve_n_jobs(bad)


def test_every_kernel_has_a_twin():
    for name in reference.__all__:
        assert callable(getattr(door, name)) and callable(getattr(kernels, name))
