"""The top block row of lagged moments, directly lag by lag or through short Fourier transforms, by cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.kernels import _moments, _spectral

__all__ = ["block_row", "direct_block_row", "segmentation", "spectral_block_row", "transform_size"]

#: Values of one block of rows that a thread works on: a quarter of a MiB, about half of a level-2 cache.
BLOCK_VALUES = 32_768
#: All private accumulators of a pass together, in values (24 MiB direct, 21 MiB spectral).
ACCUMULATOR_VALUES = 3_145_728
SPECTRUM_VALUES = 2_752_512
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
    size = transform_size(len(y), y.shape[1], order)
    if size is None:
        return direct_block_row(y, center, order, n_threads)
    n_segments = _spectral_segments(len(y), y.shape[1], size)
    if n_segments == 1:
        return spectral_block_row(y, center, order, n_threads, size)
    # Whole segments in threads of their own meet once, not at every chunk of blocks. Their working space goes from
    # hand to hand: fresh pages cost more than what is done in them.
    cuts = [order + (len(y) - order) * i // n_segments for i in range(n_segments + 1)]
    spaces: SimpleQueue[_Workspace] = SimpleQueue()
    for _ in range(n_threads):
        spaces.put(_Workspace(y.shape[1], order, size, 1))

    def segment(i: int) -> tuple[FloatArray, FloatArray, bool]:
        space = spaces.get()
        try:
            return spectral_block_row(y[cuts[i] - order : cuts[i + 1]], center, order, 1, size, space)
        finally:
            spaces.put(space)

    with ThreadPoolExecutor(n_threads) as pool:
        tops, totals, complete = zip(*pool.map(segment, range(n_segments)), strict=True)
    return np.sum(tops, axis=0), np.sum(totals, axis=0), all(complete)


def _spectral_segments(n_rows: int, dim: int, size: int) -> int:
    """Time segments with spectra of their own, by the data's shape: where these are small and the series long."""
    if (size + 2) * dim**2 > SPECTRUM_VALUES // 8:
        return 1
    return int(np.clip(n_rows // (4 * CHUNK_BLOCKS * size), 1, MAX_SEGMENTS // 4))


def transform_size(n_rows: int, dim: int, order: int) -> int | None:
    """The transform length with the fewest operations a row, or None where going lag by lag has fewer.

    Lag by lag: ``2 (p+1) d^2``. Blocks of ``L = N - p`` rows padded to ``N``: products of spectra ``2 d^2 N/L``, rows
    across the seams ``p (p+1) d^2 / L``, the transform itself ``N d``, a product of folded rows with the waves that
    runs at two thirds of the others' rate, and one more reading of the rows, worth ``90 d``, a group of frequencies
    beyond the first.
    """
    direct = 2.0 * (order + 1) * dim**2
    best, fewest = None, 0.8 * direct
    for size in SIZES:
        length = size - order
        if length < max(order, size // 2) or n_rows < 8 * size:
            continue
        again = -(-(size // 2 + 1) // _frequency_group(dim, size)) - 1
        cost = dim**2 * (2.0 * size + order * (order + 1)) / length + (1.5 * size + 90.0 * again) * dim
        if cost < fewest:
            best, fewest = size, cost
    return best


def direct_block_row(
    y: FloatArray, center: FloatArray, order: int, n_threads: int
) -> tuple[FloatArray, FloatArray, bool]:
    """Lag by lag, one private accumulator per time segment."""
    dim = y.shape[1]
    n_segments, segment, block = segmentation(len(y) - order, dim, order)
    partial = np.zeros((n_segments, dim, (order + 1) * dim))
    partial_sum = np.zeros((n_segments, dim))
    doubtful = np.zeros((n_segments, order + 1), dtype=np.uint8)
    lags_apart = int(n_segments < 8 and n_segments < n_threads)
    _moments.top_block_row(y, center, order, segment, block, lags_apart, n_threads, partial, partial_sum, doubtful)
    return partial.sum(axis=0), partial_sum.sum(axis=0), not doubtful.any()


def segmentation(n_responses: int, dim: int, order: int) -> tuple[int, int, int]:
    """Segments, responses per segment, responses per block: a function of the data's shape alone."""
    block = int(np.clip(BLOCK_VALUES // dim, 64, 4096))
    by_memory = ACCUMULATOR_VALUES // (dim * (order + 1) * dim)
    n_segments = int(np.clip(min(n_responses // MIN_SEGMENT_ROWS, by_memory), 1, MAX_SEGMENTS))
    segment = -(-n_responses // n_segments)
    return -(-n_responses // segment), segment, min(block, segment)


class _Workspace:
    """Memory of the spectral pass, used again for every chunk of blocks; its sizes follow from the shapes alone."""

    def __init__(self, dim: int, order: int, size: int, n_threads: int) -> None:
        self.dim, self.order, self.length = dim, order, size - order
        self.half = -(-self.length // 2)
        self.group = _frequency_group(dim, size)
        self.chunk = max(CHUNK_BLOCKS, WAVE_VALUES // (2 * self.group * dim))
        self.tile = int(np.clip(TILE_VALUES // (self.length * dim), 1, self.chunk))
        self.z = np.zeros((n_threads, self.length + 1, dim))
        self.folded = np.empty((n_threads, 2, self.half, self.tile * dim))
        self.flat = np.empty(2 * (self.group + order) * self.chunk * dim)

    def views(self, n_frequencies: int, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Waves (F, 2, n, d), heads and tails (p, n, d) of a chunk of n blocks."""
        shape = (self.order, count, self.dim)
        n_waves, n_ends = 2 * n_frequencies * count * self.dim, self.order * count * self.dim
        waves, heads, tails = np.split(self.flat[: n_waves + 2 * n_ends], [n_waves, n_waves + n_ends])
        return waves.reshape(n_frequencies, 2, count, self.dim), heads.reshape(shape), tails.reshape(shape)


def _frequency_group(dim: int, size: int) -> int:
    """Frequencies whose cross-spectra are held at once."""
    return int(np.clip(SPECTRUM_VALUES // (2 * dim**2), 2, size // 2 + 1))


def spectral_block_row(
    y: FloatArray, center: FloatArray, order: int, n_threads: int, size: int, space: _Workspace | None = None
) -> tuple[FloatArray, FloatArray, bool]:
    """Through transforms of length `size` of blocks of ``size - order`` rows; see the compiled kernel.

    Frequencies are taken in groups whose cross-spectra fit the memory bound, one pass over the rows a group.
    """
    dim, length = y.shape[1], size - order
    space = space or _Workspace(dim, order, size, n_threads)
    n_blocks, n_frequencies = -(-len(y) // length), size // 2 + 1
    top = np.zeros((dim, (order + 1) * dim))
    totals, doubtful = np.zeros((n_blocks, dim)), np.zeros(n_blocks, dtype=np.uint8)
    for start in range(0, n_frequencies, space.group):
        frequencies = np.arange(start, min(start + space.group, n_frequencies))
        cosines, sines = _waves(frequencies, size, length)
        real = ((frequencies == 0) | (2 * frequencies == size)).astype(np.uint8)
        even, odd = np.zeros((len(frequencies), dim, dim)), np.zeros((len(frequencies), dim, dim))
        carry = np.zeros((order, dim))
        for first in range(0, n_blocks, space.chunk):
            last = min(first + space.chunk, n_blocks)
            _spectral.accumulate_waves(
                y, center, order, length, first, last - first, space.tile, cosines, sines, real, start == 0, n_threads,
                space.z, space.folded, *space.views(len(frequencies), last - first), carry, totals[first:last],
                doubtful[first:last], even, odd, top,
            )  # fmt: skip
        _add_lags(top, frequencies, even, odd, size, order)
    return *_without_head(top, totals.sum(axis=0), y[:order] - center), not doubtful.any()


def _waves(frequencies: AnyArray, size: int, length: int) -> tuple[FloatArray, FloatArray]:
    """``cos(2 pi k (i - m)/N)`` and ``-sin(2 pi k (i - m)/N)``, i < ceil(L/2), m = (L-1)/2, angles reduced first."""
    twice = 2 * np.arange(-(-length // 2)) - (length - 1)
    angles = np.pi * (np.outer(frequencies, twice) % (2 * size)) / size
    return np.cos(angles), -np.sin(angles)


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
