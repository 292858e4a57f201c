"""The top block row of lagged moments, directly (by BLAS or by register tiles) or through short transforms, by cost."""

from __future__ import annotations

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.kernels import _moments, _spectral, _threads

__all__ = ["block_row", "direct_block_row", "segmentation", "spectral_block_row", "transform_size"]

#: Values of one block of rows that a thread works on: a quarter of a MiB, about half of a level-2 cache.
BLOCK_VALUES = 32_768
#: Values of one block of rows whose products are made by tiles, at least 96 rows: most of a level-1 cache.
TILED_VALUES = 3_200
#: More variables than that: BLAS is the faster one, its larger tiles and its packing pay.
TILED_DIM = 200
#: And from so many on for the products of spectra, which BLAS can cut into blocks.
WAVES_BY_TILES = 64
#: All private accumulators of a pass together, in values (24 MiB direct, 21 MiB spectral).
ACCUMULATOR_VALUES = 3_145_728
SPECTRUM_VALUES = 2_752_512
#: And the sums over frequencies of the lags that are made at once (4 MiB, or one lag).
LAG_VALUES = 524_288
#: Time is cut into at most so many segments, whatever the number of threads.
MAX_SEGMENTS = 32
#: A segment shorter than this is not worth an accumulator of its own.
MIN_SEGMENT_ROWS = 512
#: Blocks transformed together, the depth of the products that follow: at least so many, and more while their waves
#: fit 1 MiB. Every chunk is three parallel loops, and threads that wait for a busy core at each of them cost dearly.
CHUNK_BLOCKS = 64
WAVE_VALUES = 131_072
#: Transform lengths that are considered.
SIZES = (16, 32, 48, 64, 96, 128, 192)
#: Values of the blocks that one product transforms: 256 KiB, half of a level-2 cache.
TILE_VALUES = 32_768


def block_row(y: FloatArray, center: FloatArray, order: int, n_threads: int) -> tuple[FloatArray, FloatArray, bool]:
    """``Gamma(0, j) = sum_t z_t z_{t-j}'`` side by side, j = 0..p (d, (p+1) d), and ``sum_t z_t`` (d,), t = p..T-1.

    Also whether every value was finite (where it says no, sums of finite values may have overflowed instead).
    """
    tiles = _threads.tiles_available() and y.shape[1] <= TILED_DIM
    size = transform_size(len(y), y.shape[1], order, tiles)
    if size is None:
        return direct_block_row(y, center, order, n_threads, tiles)
    return spectral_block_row(y, center, order, n_threads, size, tiles and y.shape[1] <= WAVES_BY_TILES)


def transform_size(n_rows: int, dim: int, order: int, tiles: bool) -> int | None:
    """The transform length that costs least, or None where going lag by lag costs less (`_wave_cost`)."""
    best, least = None, _direct_cost(dim, order, tiles)
    for size in SIZES:
        length = size - order
        if length < max(order, size // 2) or n_rows < 8 * size:
            continue
        cost = _wave_cost(dim, order, size, tiles)
        if cost < least:
            best, least = size, cost
    return best


def _direct_cost(dim: int, order: int, tiles: bool) -> float:
    """Operations a row lag by lag: ``2 (p+1) d^2`` by BLAS, ``(2p+1) d^2`` by tiles; in the units of `_wave_cost`."""
    if not tiles:
        return 1.6 * (order + 1) * dim**2
    direct = float((2 * order + 1) * dim**2)
    return direct + 50.0 * dim if dim <= WAVES_BY_TILES else (0.35 + dim / 450.0) * direct


def _wave_cost(dim: int, order: int, size: int, tiles: bool) -> float:
    """Operations a row with transforms of length ``N``, weighed by the rates at which they were seen to run.

    Blocks of ``L = N - p`` rows padded to ``N``: products of spectra ``2 d^2 N/L``, rows across the seams
    ``p (p+1) d^2 / L``, the transform itself ``N d / 2``. By BLAS the unit is an operation of those products, which are
    slow for small d; the transform runs at half of that rate, and one more reading of the rows, a group of
    frequencies beyond the first, is worth ``90 d``. By tiles the unit is an operation of a tile that is full: the edges
    of small products are waste, and folding the rows is worth ``90 d``, too.
    """
    products = dim**2 * (2.0 * size + order * (order + 1)) / (size - order)
    if tiles and dim <= WAVES_BY_TILES:
        return (1.3 + 14.0 / dim) * products + (0.5 * size + 90.0) * dim
    again = -(-(size // 2 + 1) // _frequency_group(dim, size)) - 1
    return products + (size + 90.0 * again) * dim


def direct_block_row(
    y: FloatArray, center: FloatArray, order: int, n_threads: int, tiles: bool
) -> tuple[FloatArray, FloatArray, bool]:
    """Lag by lag, or all lags together by register tiles; one private accumulator per time segment."""
    dim = y.shape[1]
    n_segments, segment, block = segmentation(len(y) - order, dim, order)
    if tiles:
        block = min(int(np.clip(TILED_VALUES // dim, 96, 512)), segment)
    partial = np.zeros((n_segments, dim, (order + 1) * dim))
    partial_sum = np.zeros((n_segments, dim))
    doubtful = np.zeros((n_segments, order + 1), dtype=np.uint8)
    lags_apart = int(n_segments < 8 and n_segments < n_threads)
    _moments.top_block_row(
        y, center, order, segment, block, lags_apart, tiles, n_threads, partial, partial_sum, doubtful
    )
    top = partial.sum(axis=0)
    if tiles:
        top = np.ascontiguousarray(top.reshape(dim, order + 1, dim)[:, ::-1]).reshape(dim, -1)
        lower = np.tril(top[:, :dim])
        top[:, :dim] = lower + np.tril(lower, -1).T
    return top, partial_sum.sum(axis=0), not doubtful.any()


def segmentation(n_responses: int, dim: int, order: int) -> tuple[int, int, int]:
    """Segments, responses per segment, responses per block: a function of the data's shape alone."""
    block = int(np.clip(BLOCK_VALUES // dim, 64, 4096))
    by_memory = ACCUMULATOR_VALUES // (dim * (order + 1) * dim)
    n_segments = int(np.clip(min(n_responses // MIN_SEGMENT_ROWS, by_memory), 1, MAX_SEGMENTS))
    segment = -(-n_responses // n_segments)
    return -(-n_responses // segment), segment, min(block, segment)


def _spectral_segments(n_rows: int, dim: int, size: int) -> int:
    """Time segments with spectra of their own, by the data's shape: where these are small and the series long.

    A thread with a whole segment meets the others once, not at every chunk of blocks.
    """
    by_memory = SPECTRUM_VALUES // ((size + 2) * dim**2)
    return int(np.clip(n_rows // (4 * CHUNK_BLOCKS * size), 1, min(by_memory, MAX_SEGMENTS))) if by_memory >= 8 else 1


def _frequency_group(dim: int, size: int) -> int:
    """Frequencies whose cross-spectra are held at once."""
    group = int(np.clip(SPECTRUM_VALUES // (2 * dim**2), 2, size // 2 + 1))
    # Groups begin with an even frequency.
    return group if group == size // 2 + 1 else group - group % 2


def _space(n_spaces: int, n_values: int) -> FloatArray:
    """Working space, a row for each of `n_spaces`; tiles read a few values beyond it."""
    return np.empty(n_spaces * n_values + 8)[: n_spaces * n_values].reshape(n_spaces, n_values)


def spectral_block_row(
    y: FloatArray, center: FloatArray, order: int, n_threads: int, size: int, tiles: bool
) -> tuple[FloatArray, FloatArray, bool]:
    """Through transforms of length `size` of blocks of ``size - order`` rows; see the compiled kernel.

    Frequencies are taken in groups whose cross-spectra fit the memory bound, one pass over the rows a group.
    """
    dim, length = y.shape[1], size - order
    n_blocks, n_frequencies, group = -(-len(y) // length), size // 2 + 1, _frequency_group(dim, size)
    n_segments = min(_spectral_segments(len(y), dim, size), n_blocks)
    if n_segments > 1:
        n_threads = min(n_threads, n_segments)
    # Tiles want the waves that they multiply in the nearest cache.
    chunk = int(np.clip(2000 // dim, 40, 80)) if tiles else max(CHUNK_BLOCKS, WAVE_VALUES // (2 * group * dim))
    tile = int(np.clip(TILE_VALUES // (length * dim), 1, chunk))
    z = np.zeros((n_threads, length + 1, dim))
    folded = _space(n_threads, 4 * _distances(size, length).size * tile * dim)
    memory = _space(n_threads if n_segments > 1 else 1, (2 * (group + order) * chunk + order) * dim)
    at_once = int(np.clip(LAG_VALUES // (2 * dim**2), 1, order + 1))
    spectra = _space(len(memory), 2 * (group + at_once) * dim**2)
    segments = np.zeros((n_segments, dim, (order + 1) * dim))
    totals, doubtful = np.zeros((n_blocks, dim)), np.zeros(n_blocks, dtype=np.uint8)
    for start in range(0, n_frequencies, group):
        frequencies = np.arange(start, min(start + group, n_frequencies))
        real = (frequencies == 0) | (2 * frequencies == size)
        _spectral.accumulate_waves(
            y, center, order, size, chunk, tile, _waves(frequencies, size, length), real.astype(np.uint8),
            *_lag_weights(frequencies, size, order, real), at_once, start == 0, tiles, n_threads, z, folded, memory,
            spectra, totals, doubtful, segments,
        )  # fmt: skip
    top = segments.sum(axis=0)
    return *_without_head(top, totals.sum(axis=0), y[:order] - center), not doubtful.any()


def _distances(size: int, length: int) -> AnyArray:
    """Twice the distances ``u`` of rows from the middle of a block that is folded twice: ``u <= N/4, (L-1)/2``."""
    return np.arange((length + 1) % 2, min(size // 2, length - 1) + 1, 2)


def _waves(frequencies: AnyArray, size: int, length: int) -> FloatArray:
    """``cos(2 pi k u/N)``, of even k and then of odd ones, and ``sin(2 pi k u/N)`` likewise; angles reduced first."""
    sorted_ones = np.concatenate([frequencies[::2], frequencies[1::2]])
    angles = np.pi * (np.outer(sorted_ones, _distances(size, length)) % (2 * size)) / size
    return np.vstack([np.cos(angles), np.sin(angles)])


def _lag_weights(frequencies: AnyArray, size: int, order: int, real: AnyArray) -> tuple[FloatArray, FloatArray]:
    """``(c_k/N) cos(2 pi k j/N)`` and ``(c_k/N) sin(2 pi k j/N)``, j = 0..p, c_k = 1 where `real`, else 2."""
    weights = np.where(real, 1.0, 2.0) / size
    angles = 2.0 * np.pi * (np.outer(np.arange(order + 1), frequencies) % size) / size
    return weights * np.cos(angles), weights * np.sin(angles)


def _without_head(top: FloatArray, total: FloatArray, head: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Take back the responses t < p, which have not all their lags."""
    order, dim = head.shape
    head = np.where(np.isnan(head), 0.0, head)
    for lag in range(order):
        top[:, lag * dim : (lag + 1) * dim] -= head[lag:].T @ head[: order - lag]
    return top, total - head.sum(axis=0)
