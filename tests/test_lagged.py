"""Every way to the top block row of lagged moments, against the design matrix; thin products by tiles and by BLAS."""

import numpy as np
import pytest

from fedvar_fast import kernels
from fedvar_fast.kernels import _door as door
from fedvar_fast.kernels import _lagged, _lowrank, _threads
from fedvar_fast.kernels import _reference as reference

WAYS = {
    "lags": lambda y, center, order, threads: _lagged.direct_block_row(y, center, order, threads, False),
    "tiles": lambda y, center, order, threads: _lagged.direct_block_row(y, center, order, threads, True),
    **{
        f"waves of {size}{' by tiles' if tiles else ''}": lambda y, center, order, threads, size=size, tiles=tiles: (
            _lagged.spectral_block_row(y, center, order, threads, size, tiles)
        )
        for size in (16, 32, 48)
        for tiles in (False, True)
    },
}


def expected_row(y, center, order):
    _, yx, yy, _, total, complete = reference.lagged_moments(y, center, order)
    return np.hstack([yy, yx]), total, complete


def compare(got, want):
    for one, other in zip(got[:2], want[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * max(np.abs(other).max(), 1.0))
    assert got[2] == want[2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dim", [1, 2, 5, 8, 13, 30])
def test_every_way_gives_the_same_row(way, order, dim):
    rng = np.random.default_rng(dim * 10 + order)
    y, center = rng.standard_normal((777, dim)), rng.standard_normal(dim)
    compare(WAYS[way](y, center, order, 1), expected_row(y, center, order))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n_rows", [16, 17, 31, 32, 33, 95, 96, 97, 130])
def test_every_way_with_few_rows(way, n_rows):
    y = np.random.default_rng(n_rows).standard_normal((n_rows, 4))
    compare(WAYS[way](y, np.zeros(4), 3, 1), expected_row(y, np.zeros(4), 3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", [0, 1, 14, 30, 400, 775, 776])
def test_every_way_reads_missing_values_as_zero_and_says_so(way, row):
    y = np.random.default_rng(row).standard_normal((777, 5))
    y[row, 3] = np.nan
    compare(WAYS[way](y, np.full(5, 0.3), 3, 1), expected_row(y, np.full(5, 0.3), 3))


# 12,000 and 30,000 rows: several segments; 60 variables, 3,000 rows: one that the threads share.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("n_rows", "dim", "order"), [(12_000, 6, 3), (30_000, 3, 1), (3000, 60, 2)])
def test_no_way_depends_on_threads(way, n_rows, dim, order):
    y = np.random.default_rng(5).standard_normal((n_rows, dim))
    y[n_rows // 2, 0] = np.nan
    center = np.full(dim, 0.1)
    with kernels.one_blas_thread():
        first, *others = [WAYS[way](y, center, order, threads) for threads in (1, 2, 3)]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    compare(first, expected_row(y, center, order))


def test_segments_of_a_long_series_and_groups_of_a_wide_one():
    assert _lagged._spectral_segments(200_000, 25, 64) > 8
    assert _lagged._spectral_segments(200_000, 200, 64) == 1
    assert _lagged._frequency_group(700, 64) < 33 and _lagged._frequency_group(700, 64) % 2 == 0
    # 700 variables: frequencies in groups, lags one by one.
    y = np.random.default_rng(6).standard_normal((600, 700))
    got = _lagged.spectral_block_row(y, np.zeros(700), 2, 2, 32, False)
    compare(got, expected_row(y, np.zeros(700), 2))


@pytest.mark.parametrize(
    ("dim", "order", "by_tiles", "by_blas"),
    [(4, 4, False, False), (25, 4, True, True), (50, 12, True, True), (3, 1, False, False)],
)
def test_the_way_follows_from_the_shape(dim, order, by_tiles, by_blas):
    assert (_lagged.transform_size(200_000, dim, order, True) is not None) == by_tiles
    assert (_lagged.transform_size(200_000, dim, order, False) is not None) == by_blas
    assert _lagged.transform_size(100, dim, order, True) is None


@pytest.mark.parametrize(("n_rows", "dim", "order"), [(300, 6, 2), (9000, 20, 4), (9000, 40, 6)])
def test_a_processor_without_tiles_gets_the_same(monkeypatch, n_rows, dim, order):
    y = np.random.default_rng(7).standard_normal((n_rows, dim))
    monkeypatch.setattr(_threads, "tiles_available", lambda: False)
    got = door.lagged_moments(y, np.zeros(dim), order, 2)
    for one, other in zip(got[:5], reference.lagged_moments(y, np.zeros(dim), order)[:5], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-11 * np.abs(other).max())


# 1,100 columns: more than one chunk; 250 rows and columns: pieces, and blocks that are copied, with a rest.
@pytest.mark.parametrize(("m", "n", "width"), [(9, 7, 3), (40, 300, 8), (250, 251, 12), (500, 1100, 21), (300, 90, 1)])
@pytest.mark.parametrize("threads", [1, 3])
def test_thin_products_by_tiles_and_by_blas(m, n, width, threads):
    rng = np.random.default_rng(m)
    a, sketch = rng.standard_normal((m, n)), rng.standard_normal((n, width))
    got = []
    for tiles in (False, True):
        u, s, vt = np.empty((m, width)), np.empty(width), np.empty((width, n))
        _lowrank.randomized_svd(a, sketch, width, 2, -1.0, tiles, threads, u, s, vt)
        got.append((s, (u * s) @ vt))
    for one, other in zip(*got, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * np.abs(other).max())
