"""A client that keeps its series to itself: everything it sends goes through here, noised and written down first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.kernels import one_blas_thread
from fedvar_fast.lowrank import FixedRank, TangentVector
from fedvar_fast.moments import check_order
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.mechanism import Privacy, add_noise
from fedvar_fast.privacy.sensitivity import Neighbours, RowNorms
from fedvar_fast.scaling import Scaling
from fedvar_fast.solvers.riemannian import clipped_gradient_pair
from fedvar_fast.solvers.whitening import Whitener

__all__ = ["Curator", "symmetric_from_vector", "vector_from_symmetric"]

#: Numbers of a block of rows that is worked on at a time.
_BLOCK_NUMBERS = 2**20
#: A released deviation, in units of the bounds' half width, counts for no less.
_SMALLEST_DEVIATION = 1e-4
#: Share of the scale's budget that goes to the centre.
_CENTRE_SHARE = 0.5


@dataclass
class Curator:
    """One client under ``Privacy(calibration="total")``.

    Attributes
    ----------
    name : str
    values : ndarray, shape (T_raw, d)
        The raw series.
    order : int
    privacy : Privacy
    neighbours : Neighbours
        What a neighbouring data set is, and how far it can move each release.
    strength : mapping of str to float
        The budget ``mu`` of each purpose.
    ledger : Ledger
    random_state : int or None
    n_jobs : int, optional
    note : str
        Written beside every release: which fit it belongs to.
    scaling : Scaling
        Public, or made by `release_scaling`.
    """

    name: str
    values: AnyArray
    order: int
    privacy: Privacy
    neighbours: Neighbours
    strength: Mapping[str, float]
    ledger: Ledger
    random_state: int | None
    n_jobs: int | None = None
    note: str = ""
    scaling: Scaling = field(init=False)
    #: Mean squared relative error that noise makes in each column's scale (d,), from what was released; 0: public.
    scale_error: FloatArray | float = field(default=0.0, init=False)
    #: Variance of the noise in each column's centre (d,), in scaled units; 0: public.
    center_error: FloatArray | float = field(default=0.0, init=False)
    _n_sent: int = field(default=0, init=False)
    _within: AnyArray | None = field(default=None, init=False)

    def take_scaling(self, scaling: Scaling, sensitive: AnyArray) -> None:
        """Go on with this centre and scale, and with what bounds in their units say of a neighbour."""
        self.scaling = scaling
        smallest = float(scaling.scale.min())
        if scaling.lower is None or scaling.upper is None or self.privacy.unit != "observation":
            self.neighbours = replace(self.neighbours, smallest_scale=smallest)
            return
        width = float(np.linalg.norm(((scaling.upper - scaling.lower) / scaling.scale)[sensitive]))
        self.neighbours = replace(self.neighbours, smallest_scale=smallest, width=width)

    @property
    def n_responses(self) -> int:
        """``T_raw - p``, public: rows with missing values count and contribute nothing."""
        return len(self.values) - check_order(self.order)

    def send(self, what: str, value: FloatArray, sensitivity: float, mu: float, context: bytes = b"") -> FloatArray:
        """The value with noise ``sensitivity / mu``, after the ledger has it; a message sent before is sent again."""
        self._n_sent += 1
        sigma, index = sensitivity / mu, self._n_sent
        return self.ledger.send(
            self.name, what, self._setting(value.shape, sensitivity, sigma) + context,
            lambda: add_noise(value, sigma, self.privacy, self.random_state, self.name, index),
            sensitivity=sensitivity, sigma=sigma, unit=self.privacy.unit, relation=self.neighbours.relation,
            note=self.note,
        )  # fmt: skip

    def _setting(self, shape: tuple[int, ...], sensitivity: float, sigma: float) -> bytes:
        """What every message depends on beside the series: the same message under another option is another one."""
        numbers = [np.array([self.order, *shape], dtype=np.float64), np.array([sensitivity, sigma])]
        if hasattr(self, "scaling"):
            bounds = [one for one in (self.scaling.lower, self.scaling.upper) if one is not None]
            numbers += [self.scaling.center, self.scaling.scale, *bounds]
        return self.privacy.unit.encode() + b"".join(one.tobytes() for one in numbers)

    # -- releases before the rounds --------------------------------------------------------------------------

    def release_scaling(self, low: FloatArray, high: FloatArray, center: bool, scale: bool) -> Scaling:
        """Centre and scale from declared column bounds: noisy means, then noisy absolute deviations from them.

        With ``u = (clamp(y) - mid) / half`` in [-1, 1], 0 where missing, first the means of u. Then those of
        ``|u - m|``, m the released ones, drawn into [0, 1] and 0 where missing: one replaced row moves each by at most
        half as much. The scale is sqrt(pi/2) of that deviation, which makes it the standard deviation of Gaussian data.
        Deviations are in proportion to the scale, not to its square: of the same noise they keep more digits than
        second moments.
        """
        middle, half = 0.5 * (low + high), 0.5 * (high - low)

        def mean_of(function: Callable[[FloatArray], FloatArray]) -> FloatArray:
            total = np.zeros(len(low))
            for start in range(0, len(self.values), self._block()):
                rows = np.asarray(self.values[start : start + self._block()], dtype=np.float64)
                total += np.nan_to_num(function((np.clip(rows, low, high) - middle) / half), nan=0.0).sum(axis=0)
            return total / len(self.values)

        sensitivity, mu = self.neighbours.scale(float(half.min())), self.strength["scale"]
        declared = low.tobytes() + high.tobytes()
        mean = self.send("centre", mean_of(lambda u: u), sensitivity, mu * math.sqrt(_CENTRE_SHARE), declared)
        mean = np.clip(mean, -1.0, 1.0)
        deviation_mu = mu * math.sqrt(1.0 - _CENTRE_SHARE)
        deviation = self.send(
            "scale",
            mean_of(lambda u: np.minimum(np.abs(u - mean), 1.0)),
            0.5 * sensitivity,
            deviation_mu,
            mean.tobytes(),
        )
        # What the noise alone could make of a column that hardly varies is no scale.
        smallest = max(_SMALLEST_DEVIATION, 0.5 * sensitivity / deviation_mu)
        if scale:
            self.scale_error = (0.5 * sensitivity / deviation_mu / np.clip(deviation, smallest, 1.0)) ** 2
        spread = math.sqrt(0.5 * math.pi) * half * np.clip(deviation, smallest, 1.0)
        if center:
            noise = sensitivity / (mu * math.sqrt(_CENTRE_SHARE)) * half
            self.center_error = (noise / (spread if scale else 1.0)) ** 2
        return Scaling.given(
            middle + half * mean if center else np.zeros_like(mean), spread if scale else np.ones_like(mean),
            lower=low, upper=high,
        )  # fmt: skip

    def release_second_moment(self, x_norm: float) -> FloatArray:
        """``(1/T) sum x x'`` of regressor rows drawn into the ball of radius `x_norm`, with symmetric noise."""
        total = np.zeros((self.order * self._dim, self.order * self._dim))
        with one_blas_thread():
            for x, _ in self._rows():
                # Rows whose response is missing count, too: dropping them would let one value move p more rows.
                short = _drawn_in(_complete(x), x_norm)
                total += short.T @ short
        sensitivity = self.neighbours.second_moment(x_norm)
        vector = vector_from_symmetric(total / self.n_responses)
        return symmetric_from_vector(
            self.send("second moments of the regressors", vector, sensitivity, self.strength["whitening"])
        )

    def release_cross_moment(self, x_norm: float, y_norm: float) -> FloatArray:
        """``(1/T) sum y x'`` of responses and regressor rows drawn into balls, with noise."""
        total = np.zeros((self._dim, self.order * self._dim))
        with one_blas_thread():
            for x, y in self._rows():
                total += _drawn_in(_complete(y), y_norm).T @ _drawn_in(_complete(x), x_norm)
        sensitivity = self.neighbours.cross_moment(x_norm, y_norm)
        return self.send("start", total / self.n_responses, sensitivity, self.strength["start"])

    # -- rounds ----------------------------------------------------------------------------------------------

    def row_squares(self, whitener: Whitener) -> FloatArray:
        """``||P x_t||^2`` by response, for all rounds; stays here."""
        with one_blas_thread():
            return whitener.row_squares(self._clamped(), self.scaling.center, self.scaling.scale, self.order)

    def release_pair(
        self,
        number: int,
        point: FixedRank,
        whitener: Whitener,
        row_squares: FloatArray,
        clip_norm: float,
        mu: float,
        count_mu: float | None,
    ) -> tuple[TangentVector, float | None]:
        """A round's message ``r (d + pd)`` in whitened coordinates, and the noisy share of rows that were not clipped.

        Noise of law ``P_T(W)``: on R as it is, on B projected off U, as post-processing.
        """
        whole = self.privacy.unit == "client"
        pair, n_inside, n_usable = clipped_gradient_pair(
            point, self._clamped(), self.scaling.center, self.scaling.scale, self.order,
            np.inf if whole else clip_norm, self.n_jobs, whitener, row_squares,
        )  # fmt: skip
        pair, inside = (n_usable / self.n_responses) * pair, n_inside / self.n_responses
        if whole:
            inside = float(pair.norm() <= clip_norm)
            pair = (clip_norm / max(pair.norm(), clip_norm)) * pair
        context = b"".join(part.tobytes() for part in (point.u, point.s, point.v, np.float64(clip_norm)))
        rank, width = pair.row_part.shape
        flat = np.concatenate([pair.row_part.ravel(), pair.column_part.ravel()])
        sensitivity = self.gradient_sensitivity(point, whitener, clip_norm)
        noisy = self.send(f"round {number} gradient pair", flat, sensitivity, mu, context)
        row_part, column_part = noisy[: rank * width].reshape(rank, width), noisy[rank * width :].reshape(-1, rank)
        sent = TangentVector(row_part, column_part - point.u @ (point.u.T @ column_part))
        if count_mu is None:
            return sent, None
        what = f"round {number} rows within the clipping norm"
        share = self.send(what, np.array([inside]), self.neighbours.count(), count_mu, context)
        return sent, float(share[0])

    def gradient_sensitivity(self, point: FixedRank, whitener: Whitener, clip_norm: float) -> float:
        """How far one neighbour can move the round's message; smaller where declared bounds say more than clipping."""
        if self.scaling.lower is None or self.scaling.upper is None:
            return self.neighbours.gradient(clip_norm)
        reach = np.maximum(
            np.abs(self.scaling.lower - self.scaling.center), np.abs(self.scaling.upper - self.scaling.center)
        )
        z_norm = float(np.linalg.norm(reach / self.scaling.scale))
        x_norm = math.sqrt(self.order) * z_norm
        coefficients = float(np.linalg.norm(whitener.times(np.ascontiguousarray((point.v * point.s).T)), 2))
        norms = RowNorms(coefficients, whitener.norm, whitener.norm * x_norm, coefficients * x_norm + z_norm)
        return self.neighbours.gradient(clip_norm, norms)

    def clean_pair(self, point: FixedRank, whitener: Whitener, row_squares: FloatArray) -> TangentVector:
        """Its gradient at ``B`` without clipping and noise. Stays here."""
        return clipped_gradient_pair(
            point, self._clamped(), self.scaling.center, self.scaling.scale, self.order, np.inf, self.n_jobs, whitener,
            row_squares,
        )[0]  # fmt: skip

    # -- its own rows ----------------------------------------------------------------------------------------

    @property
    def _dim(self) -> int:
        return int(self.values.shape[1])

    def _block(self) -> int:
        return max(1, _BLOCK_NUMBERS // (self.order * self._dim))

    def _clamped(self) -> AnyArray:
        """The series within the declared bounds; itself where nothing lies beyond them."""
        if self._within is None:
            low, high = self.scaling.lower, self.scaling.upper
            block = self._block()
            inside = low is None or all(
                bool(np.all((rows >= low) & (rows <= high) | np.isnan(rows)))
                for rows in (self.values[start : start + block] for start in range(0, len(self.values), block))
            )
            self._within = self.values if inside else self.scaling.clip(self.values)
        return self._within

    def _rows(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Blocks of scaled regressor rows and responses."""
        block, order = self._block(), self.order
        for start in range(0, self.n_responses, block):
            z = self.scaling.transform(np.asarray(self.values[start : start + block + order], dtype=np.float64))
            count = len(z) - order
            yield np.hstack([z[order - lag : order - lag + count] for lag in range(1, order + 1)]), z[order:]


def _complete(rows: FloatArray) -> FloatArray:
    """Rows that miss something as rows of zeros."""
    missing = np.flatnonzero(~np.all(np.isfinite(rows), axis=1))
    if len(missing):
        rows = rows.copy()
        rows[missing] = 0.0
    return rows


def _drawn_in(rows: FloatArray, radius: float) -> FloatArray:
    """Rows projected onto the ball of that radius."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return rows * (radius / np.maximum(norms, radius))[:, None]


def vector_from_symmetric(matrix: FloatArray) -> FloatArray:
    """Diagonal and sqrt(2) times the upper triangle: the Frobenius norm of the matrix is that of the vector."""
    rows, columns = np.triu_indices(len(matrix), 1)
    return np.concatenate([np.diag(matrix), np.sqrt(2.0) * matrix[rows, columns]])


def symmetric_from_vector(vector: FloatArray) -> FloatArray:
    """The inverse of `vector_from_symmetric`."""
    size = int((np.sqrt(8.0 * len(vector) + 1.0) - 1.0) / 2.0 + 0.5)
    rows, columns = np.triu_indices(size, 1)
    matrix = np.zeros((size, size))
    matrix[rows, columns] = vector[size:] / np.sqrt(2.0)
    matrix += matrix.T
    matrix[np.diag_indices(size)] = vector[:size]
    return matrix
