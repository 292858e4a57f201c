"""The per-row clipped gradient: against its twin, the dense projections row by row, and the moments."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import design

import fedvar_fast as fv
from fedvar_fast import kernels
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError
from fedvar_fast.kernels import _reference as reference
from fedvar_fast.lowrank import FixedRank, TangentVector
from fedvar_fast.solvers.riemannian import clipped_gradient_pair as solver_pair
from fedvar_fast.solvers.riemannian import gradient_pair

door = pytest.importorskip("fedvar_fast.kernels._door")

THREADS = (1, 2, 4)
quick = settings(max_examples=60, deadline=None)


def point(rng, dim, order, rank):
    u = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    v = np.linalg.qr(rng.standard_normal((order * dim, rank)))[0]
    return u, np.sort(rng.uniform(0.3, 1.0, rank))[::-1].copy(), v


def problem(seed, n_rows, dim, order, rank, missing=0.0):
    """A series, its centre and scale, the order, and a point."""
    rng = np.random.default_rng(seed)
    y = 3.0 + rng.standard_normal((n_rows, dim)) * rng.uniform(0.5, 2.0, dim)
    y[rng.random(y.shape) < missing] = np.nan
    return (y, np.full(dim, 2.9), rng.uniform(0.5, 2.0, dim), order, *point(rng, dim, order, rank))


def norms_of(y, center, scale, order, u, s, v):
    """||H_t|| and H_t of every usable row, with full projectors."""
    response, x = design((y - center) / scale, order)
    left, right = u @ u.T, v @ v.T
    parts = []
    for z_t, x_t in zip(response, x, strict=True):
        raw = np.outer((u * s) @ v.T @ x_t - z_t, x_t)
        parts.append(left @ raw + raw @ right - left @ raw @ right)
    parts = np.array(parts).reshape(-1, len(u), len(v))
    return np.linalg.norm(parts, axis=(1, 2)), parts


def middle_clip(args, share=0.5):
    """A clipping norm between two rows' norms, so that rounding moves no row across it."""
    norms = np.sort(norms_of(*args)[0])
    if not len(norms):
        return 1.0
    k = int(share * (len(norms) - 1))
    return float(norms[k] + norms[min(k + 1, len(norms) - 1)]) / 2.0 * (1.0 + 1e-9) + 1e-12


def same(got, want, tol=1e-11):
    for a, b in zip(got[:2], want[:2], strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tol * max(1.0, float(np.max(np.abs(b), initial=0.0))))
    assert got[2:] == want[2:]


def identical(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


# -- against the twin and the dense rows ---------------------------------------------------------------------------


@quick
@given(
    dim=st.integers(1, 9), order=st.integers(1, 4), extra=st.integers(1, 90), data=st.data(), seed=st.integers(0, 999),
    share=st.floats(0, 1), missing=st.sampled_from([0.0, 0.0, 0.02, 0.3]), threads=st.sampled_from(THREADS),
)  # fmt: skip
def test_it_meets_its_twin_and_the_dense_rows(dim, order, extra, data, seed, share, missing, threads):
    args = problem(seed, order + extra, dim, order, data.draw(st.integers(0, dim)), missing)
    clip = middle_clip(args, share)
    got = door.clipped_gradient_pair(*args, clip, threads)
    same(got, reference.clipped_gradient_pair(*args, clip))
    norms, parts = norms_of(*args)
    u, _, v = args[4:]
    assert got[3] == len(norms) and got[2] == np.sum(norms <= clip)
    weights = np.minimum(1.0, clip / np.where(norms > 0, norms, 1.0))
    dense = 2.0 / max(len(norms), 1) * np.tensordot(weights, parts, axes=1)
    scale = max(1.0, float(np.max(np.abs(dense), initial=0.0)))
    np.testing.assert_allclose(u @ got[0] + got[1] @ v.T, dense, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(u.T @ got[1], 0.0, atol=1e-13 * scale)


@pytest.mark.parametrize(
    ("n_rows", "dim", "order", "rank"),
    [(700, 5, 3, 2), (3000, 4, 4, 4), (40_000, 3, 2, 1), (2500, 80, 2, 5), (1500, 300, 3, 6), (200, 2, 90, 1)],
)
def test_it_does_not_depend_on_threads(n_rows, dim, order, rank):
    args = problem(1, n_rows, dim, order, rank)
    args[0][50, 0] = args[0][-30, -1] = np.nan
    clip = 0.7 * dim * np.sqrt(order * (1 + rank))
    with kernels.one_blas_thread():
        first, *others = [door.clipped_gradient_pair(*args, clip, n) for n in THREADS]
    for other in others:
        identical(other, first)
    same(first, reference.clipped_gradient_pair(*args, clip), 1e-10)


def test_blocks_and_segments_hand_over_their_lags():
    # Every block and segment boundary lies inside; each row must count once, with all of its lags.
    args = problem(2, 20_000, 8, 5, 3)
    for clip in (np.inf, 20.0):
        same(door.clipped_gradient_pair(*args, clip, 2), reference.clipped_gradient_pair(*args, clip), 1e-11)


# -- what it must equal --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.05])
def test_without_clipping_it_is_the_gradient_of_the_moments(missing):
    y, center, scale, order, u, s, v = problem(3, 3000, 6, 3, 2, missing)
    moments = fv.lagged_moments(y, order, center=center).standardized(center, scale)
    want, _ = gradient_pair(FixedRank(u, s, v), moments)
    got, n_unclipped, n_rows = solver_pair(FixedRank(u, s, v), y, center, scale, order, np.inf, 2)
    np.testing.assert_allclose(got.row_part, want.row_part, rtol=0, atol=1e-10)
    np.testing.assert_allclose(got.column_part, want.column_part, rtol=0, atol=1e-10)
    assert n_unclipped == n_rows == moments.n_rows
    # A clipping norm above every row's is no clipping at all, to the last bit.
    above, *counts = solver_pair(FixedRank(u, s, v), y, center, scale, order, 1e6, 1)
    identical((above.row_part, above.column_part, *counts), (got.row_part, got.column_part, n_unclipped, n_rows))


def test_a_clipping_norm_of_zero_gives_zeros():
    row_part, column_part, n_unclipped, n_rows = door.clipped_gradient_pair(*problem(4, 100, 4, 2, 2), 0.0)
    assert not row_part.any() and not column_part.any()
    assert (n_unclipped, n_rows) == (0, 98)


def test_rank_zero_has_only_unclipped_rows():
    row_part, column_part, n_unclipped, n_rows = door.clipped_gradient_pair(*problem(5, 50, 3, 2, 0, 0.02), 1.0)
    assert row_part.shape == (0, 6) and column_part.shape == (3, 0)
    assert n_unclipped == n_rows < 48


def test_one_usable_row():
    args = problem(6, 4, 3, 3, 2)
    for clip in (0.1, np.inf):
        got = door.clipped_gradient_pair(*args, clip)
        same(got, reference.clipped_gradient_pair(*args, clip))
        assert got[3] == 1
    length = np.sqrt(np.sum(door.clipped_gradient_pair(*args, 0.1)[0] ** 2))
    assert length <= 2 * 0.1 * (1 + 1e-12)


def test_no_usable_row_gives_zeros():
    short = problem(7, 2, 3, 2, 2)
    gaps = problem(7, 60, 3, 2, 2)
    gaps[0][::2, 1] = np.nan
    for args in (short, gaps):
        for backend in (door, reference):
            row_part, column_part, *counts = backend.clipped_gradient_pair(*args, 1.0)
            assert not row_part.any() and not column_part.any() and counts == [0, 0]


# -- data that are hard --------------------------------------------------------------------------------------------


def test_a_row_with_a_gap_changes_nothing():
    y, *rest = problem(8, 400, 5, 2, 2)
    y[100, 3] = np.nan
    other = y.copy()
    other[100] = [1e9, np.nan, -4.0, np.inf, np.nan]
    identical(door.clipped_gradient_pair(y, *rest, 5.0), door.clipped_gradient_pair(other, *rest, 5.0))


def test_huge_means_are_centred_first():
    y, _, scale, *rest = problem(9, 500, 5, 2, 2)
    y = 1e9 + np.round(y, 3)
    center = y.mean(axis=0)
    same(
        door.clipped_gradient_pair(y, center, scale, *rest, 5.0),
        reference.clipped_gradient_pair(y - center, np.zeros(5), scale, *rest, 5.0),
        1e-10,
    )


def test_constant_columns_and_rows_of_zeros():
    y, _, _, *rest = problem(10, 300, 4, 2, 2)
    y[:, 1] = 7.0
    y[50:90] = 0.0
    center, scale = np.array([0.0, 7.0, 0.0, 0.0]), np.ones(4)
    y[50:90, 1] = 7.0
    got = door.clipped_gradient_pair(y, center, scale, *rest, 3.0)
    same(got, reference.clipped_gradient_pair(y, center, scale, *rest, 3.0))
    # Norm 0: the 38 rows whose response and lags are zero, and the one after them, whose lags are.
    assert door.clipped_gradient_pair(y, center, scale, *rest, 0.0)[2] == 39
    nothing = door.clipped_gradient_pair(np.tile(center, (30, 1)), center, scale, *rest, 0.0)
    assert not nothing[0].any() and not nothing[1].any() and nothing[2:] == (28, 28)


def test_norms_keep_their_digits_where_the_residual_is_tiny():
    # z = A x to 1e-9: ||z||^2 - ||U'z||^2 is rounding, and all of ||H_t|| comes from it.
    rng = np.random.default_rng(11)
    dim, order, rank = 6, 1, 2
    u = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    state = np.array([np.linalg.matrix_power(turn, t) @ [1.0, 0.5] for t in range(300)])
    outside = rng.standard_normal((300, dim))
    outside -= outside @ u @ u.T
    y = state @ u.T + 1e-9 * outside
    args = (y, np.zeros(dim), np.ones(dim), order, u @ turn, np.ones(rank), u)
    norms = norms_of(*args)[0]
    clip = float(np.median(norms)) * (1 + 1e-6)
    assert 1e-10 < clip < 1e-7
    got, want = door.clipped_gradient_pair(*args, clip), reference.clipped_gradient_pair(*args, clip)
    np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-4 * np.max(np.abs(want[1])))
    assert got[2:] == want[2:] == (int(np.sum(norms <= clip)), 299)


@pytest.mark.parametrize("size", [1e-120, 1e-90, 1e90, 1e120, 1e200, 1e307])
def test_squares_out_of_range_neither_pass_the_bound_nor_spoil_the_sum(size):
    args = problem(12, 200, 4, 2, 2)
    args[0][100] *= size
    clip = 1.0 if size > 1 else 1e-3
    row_part, column_part, n_unclipped, n_rows = door.clipped_gradient_pair(*args, clip)
    assert np.isfinite(row_part).all() and np.isfinite(column_part).all()
    total = 0.5 * n_rows * TangentVector(row_part, column_part).norm()
    assert total <= clip * n_rows and n_unclipped <= n_rows == 198
    if size < 1e100:
        same((row_part, column_part, n_unclipped, n_rows), reference.clipped_gradient_pair(*args, clip))


# -- layouts -------------------------------------------------------------------------------------------------------


def layouts(y):
    strided = np.zeros((2 * y.shape[0], 3 * y.shape[1]), dtype=y.dtype)
    strided[::2, ::3] = y
    frozen = y.copy()
    frozen.flags.writeable = False
    unaligned = np.zeros(y.nbytes + 1, dtype=np.uint8)[1:].view(y.dtype).reshape(y.shape)
    unaligned[:] = y
    return {
        "C": y, "F": np.asfortranarray(y), "strided": strided[::2, ::3], "backwards": y[::-1].copy()[::-1],
        "read-only": frozen, "unaligned": unaligned, "big-endian": y.astype(y.dtype.newbyteorder(">")),
    }  # fmt: skip


@pytest.mark.parametrize("layout", sorted(layouts(np.zeros((1, 1)))))
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8])
@pytest.mark.parametrize("dim", [1, 3])
def test_it_takes_any_layout_and_dtype(layout, dtype, dim):
    y, *rest = problem(13, 120, dim, 2, 1)
    y = layouts(np.abs(10 * y).astype(dtype))[layout]
    before = y.copy()
    same(door.clipped_gradient_pair(y, *rest, 9.0), reference.clipped_gradient_pair(y.astype(float), *rest, 9.0))
    np.testing.assert_array_equal(y, before)


def test_single_precision_is_read_exactly_and_not_copied():
    y, *rest = problem(14, 50_000, 20, 2, 2)
    single = y.astype(np.float32)
    identical(
        door.clipped_gradient_pair(single, *rest, 9.0), door.clipped_gradient_pair(single.astype(float), *rest, 9.0)
    )
    for array in (single, np.asfortranarray(y), y[::2]):
        tracemalloc.start()
        door.clipped_gradient_pair(array, *rest, 9.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20


def test_the_point_and_the_scaling_may_have_any_layout():
    y, center, scale, order, u, s, v = problem(15, 90, 4, 2, 2)
    strided = [np.repeat(a, 2, axis=0)[::2] for a in (center, scale, s)]
    got = door.clipped_gradient_pair(
        y, strided[0], strided[1], order, np.asfortranarray(u), strided[2], np.asfortranarray(v), 5.0
    )
    identical(got, door.clipped_gradient_pair(y, center, scale, order, u, s, v, 5.0))


# -- what privacy rests on -----------------------------------------------------------------------------------------


@quick
@given(
    order=st.integers(1, 3), dim=st.integers(1, 5), data=st.data(), size=st.sampled_from([0.0, 1.0, 1e3, 1e12]),
    clip=st.floats(0.01, 30.0), seed=st.integers(0, 999),
)  # fmt: skip
def test_a_replaced_observation_moves_the_sum_by_at_most_two_norms_a_row(order, dim, data, size, clip, seed):
    n_raw = 40
    y, *rest = problem(seed, n_raw, dim, order, data.draw(st.integers(1, dim)))
    other = y.copy()
    where = data.draw(st.integers(0, n_raw - 1))
    other[where] = size * np.random.default_rng(seed + 1).standard_normal(dim)
    one, two = (door.clipped_gradient_pair(a, *rest, clip) for a in (y, other))
    moved = 0.5 * one[3] * TangentVector(one[0] - two[0], one[1] - two[1]).norm()
    responses = range(max(where, order), min(where + order, n_raw - 1) + 1)
    assert moved <= 2 * clip * len(responses) * (1 + 1e-9)
    assert len(responses) <= order + 1 and abs(one[2] - two[2]) <= len(responses)


# -- the solver's wrapper ------------------------------------------------------------------------------------------


def test_the_wrapper_gives_the_kernels_answer_and_refuses_bad_input():
    y, center, scale, order, u, s, v = problem(16, 200, 4, 2, 2)
    base = FixedRank(u, s, v)
    tangent, *counts = solver_pair(base, y, center, scale, order, 5.0)
    same(
        (tangent.row_part, tangent.column_part, *counts),
        reference.clipped_gradient_pair(y, center, scale, order, u, s, v, 5.0),
    )
    good = {"y": y, "center": center, "scale": scale, "order": order, "clip_norm": 5.0}
    bad = [
        (OptionError, {"clip_norm": -1.0}), (OptionError, {"clip_norm": float("nan")}),
        (OptionError, {"scale": np.zeros(4)}), (OptionError, {"scale": np.ones(3)}),
        (OptionError, {"center": np.full(4, np.nan)}), (OptionError, {"order": 3}), (OptionError, {"order": 0}),
        (OptionError, {"n_jobs": 0}), (DataError, {"y": y[:2]}), (DataError, {"y": y[0]}),
        (DataTypeError, {"y": y.astype(str)}),
    ]  # fmt: skip
    for error, changed in bad:
        with pytest.raises(error):
            solver_pair(base, **(good | changed))
