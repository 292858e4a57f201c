"""The top block row of lagged moments, directly lag by lag or through short Fourier transforms, by cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.kernels import _moments, _spectral

__all__ = ["block_row", "direct_block_row", "segmentation", "spectral_block_row", "transform_size"]

#: Values of one block of rows that a thread works on: a quarter of a MiB, about half of a level-2 cache.
BLOCK_VALUES = 32_768
#: All private accumulators of a pass together, in values (24 MiB direct, 16 MiB spectral).
ACCUMULATOR_VALUES = 3_145_728
SPECTRUM_VALUES = 2_097_152
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


def block_row(y: FloatArray, center: FloatArray, order: int, n_threads: int) -> tuple[FloatArray, FloatArray]:
    """``Gamma(0, j) = sum_t z_t z_{t-j}'`` side by side, j = 0..p (d, (p+1) d), and ``sum_t z_t`` (d,), t = p..T-1."""
    size = transform_size(len(y), y.shape[1], order)
    if size is None:
        return direct_block_row(y, center, order, n_threads)
    n_segments = _spectral_segments(len(y), y.shape[1], size)
    if n_segments == 1:
        return spectral_block_row(y, center, order, n_threads, size)
    # Whole segments in threads of their own meet once, not at every chunk of blocks.
    cuts = [order + (len(y) - order) * i // n_segments for i in range(n_segments + 1)]
    with ThreadPoolExecutor(n_threads) as pool:
        parts = list(
            pool.map(
                lambda i: spectral_block_row(y[cuts[i] - order : cuts[i + 1]], center, order, 1, size),
                range(n_segments),
            )
        )
    return np.sum([part[0] for part in parts], axis=0), np.sum([part[1] for part in parts], axis=0)


def _spectral_segments(n_rows: int, dim: int, size: int) -> int:
    """Time segments with spectra of their own, by the data's shape: where these are small and the series long."""
    if (size + 2) * dim**2 > SPECTRUM_VALUES // 8:
        return 1
    return int(np.clip(n_rows // (4 * CHUNK_BLOCKS * size), 1, MAX_SEGMENTS // 4))


def transform_size(n_rows: int, dim: int, order: int) -> int | None:
    """The transform length with the fewest operations a row, or None where going lag by lag has fewer.

    Lag by lag: ``2 (p+1) d^2``. Blocks of ``L = N - p`` rows padded to ``N``: products of spectra ``2 d^2 N/L``, rows
    across the seams ``p (p+1) d^2 / L``, the transform itself ``2 N d`` as a product with a matrix of waves.
    """
    direct = 2.0 * (order + 1) * dim**2
    best, fewest = None, 0.8 * direct
    for size in SIZES:
        length = size - order
        if length < max(order, size // 2) or n_rows < 8 * size:
            continue
        cost = 2.0 * dim**2 * size / length + order * (order + 1) * dim**2 / length + 2.0 * size * dim
        if cost < fewest:
            best, fewest = size, cost
    return best


def direct_block_row(y: FloatArray, center: FloatArray, order: int, n_threads: int) -> tuple[FloatArray, FloatArray]:
    """Lag by lag, one private accumulator per time segment."""
    dim = y.shape[1]
    n_segments, segment, block = segmentation(len(y) - order, dim, order)
    partial = np.zeros((n_segments, dim, (order + 1) * dim))
    partial_sum = np.zeros((n_segments, dim))
    lags_apart = int(n_segments < 8 and n_segments < n_threads)
    _moments.top_block_row(y, center, order, segment, block, lags_apart, n_threads, partial, partial_sum)
    return partial.sum(axis=0), partial_sum.sum(axis=0)


def segmentation(n_responses: int, dim: int, order: int) -> tuple[int, int, int]:
    """Segments, responses per segment, responses per block: a function of the data's shape alone."""
    block = int(np.clip(BLOCK_VALUES // dim, 64, 4096))
    by_memory = ACCUMULATOR_VALUES // (dim * (order + 1) * dim)
    n_segments = int(np.clip(min(n_responses // MIN_SEGMENT_ROWS, by_memory), 1, MAX_SEGMENTS))
    segment = -(-n_responses // n_segments)
    return -(-n_responses // segment), segment, min(block, segment)


def spectral_block_row(
    y: FloatArray, center: FloatArray, order: int, n_threads: int, size: int
) -> tuple[FloatArray, FloatArray]:
    """Through transforms of length `size` of blocks of ``size - order`` rows; see the compiled kernel.

    Frequencies are taken in groups whose cross-spectra fit the memory bound, one pass over the rows a group.
    """
    dim, length = y.shape[1], size - order
    total_blocks = -(-len(y) // length)
    n_frequencies = size // 2 + 1
    group = int(np.clip(SPECTRUM_VALUES // (2 * dim**2), 2, n_frequencies))
    chunk = min(max(CHUNK_BLOCKS, WAVE_VALUES // (2 * group * dim)), total_blocks)
    top = np.zeros((dim, (order + 1) * dim))
    totals = np.zeros((total_blocks, dim))
    z = np.empty((n_threads, length, dim))
    heads, tails = np.empty((chunk, order * dim)), np.zeros((chunk + 1, order * dim))
    for start in range(0, n_frequencies, group):
        frequencies = np.arange(start, min(start + group, n_frequencies))
        basis = _waves(frequencies, size, length)
        even, odd = np.zeros((len(frequencies), dim, dim)), np.zeros((len(frequencies), dim, dim))
        waves = np.empty((len(basis), chunk, dim))
        for first in range(0, total_blocks, chunk):
            count = min(chunk, total_blocks - first)
            _spectral.accumulate_waves(
                y, center, order, length, first, count, basis, start == 0, n_threads, z,
                waves.reshape(-1)[: len(basis) * count * dim].reshape(len(basis), count, dim),
                heads, tails, totals[first : first + count], even, odd, top,
            )  # fmt: skip
        _add_lags(top, frequencies, even, odd, size, order)
    return _without_head(top, totals.sum(axis=0), y[:order] - center)


def _waves(frequencies: AnyArray, size: int, length: int) -> FloatArray:
    """Rows ``cos(2 pi k i / N)`` and ``-sin(2 pi k i / N)`` in turn, i < L; angles reduced before they are rounded."""
    angles = 2.0 * np.pi * (np.outer(frequencies, np.arange(length)) % size) / size
    return np.ascontiguousarray(np.stack([np.cos(angles), -np.sin(angles)], axis=1).reshape(-1, length))


def _add_lags(top: FloatArray, frequencies: AnyArray, even: FloatArray, odd: FloatArray, size: int, order: int) -> None:
    """``top_j += (1/N) sum_k w_k (P_k cos(2 pi k j/N) - (M_k - M_k') sin(2 pi k j/N))``, in place."""
    dim = len(top)
    weights = np.where((frequencies == 0) | (2 * frequencies == size), 1.0, 2.0) / size
    angles = 2.0 * np.pi * (np.outer(np.arange(order + 1), frequencies) % size) / size
    lower = np.tensordot(weights * np.cos(angles), even, axes=1)
    skew = np.tensordot(weights * np.sin(angles), odd, axes=1)
    for lag in range(order + 1):
        triangle = np.tril(lower[lag])
        symmetric = triangle + np.tril(triangle, -1).T
        top[:, lag * dim : (lag + 1) * dim] += symmetric - skew[lag] + skew[lag].T


def _without_head(top: FloatArray, total: FloatArray, head: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Take back the responses t < p, which have not all their lags."""
    order, dim = head.shape
    head = np.where(np.isnan(head), 0.0, head)
    for lag in range(order):
        top[:, lag * dim : (lag + 1) * dim] -= head[lag:].T @ head[: order - lag]
    return top, total - head.sum(axis=0)
