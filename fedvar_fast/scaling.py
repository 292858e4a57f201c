"""Centre, scale and clip bounds of one client's variables, computed from its rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedvar_fast.exceptions import ConstantColumnWarning, DataError, OptionError

__all__ = ["Scaling"]

Array = NDArray[np.float64]

# Numbers per block of rows: one megabyte, which stays in the cache and keeps temporaries small.
_BLOCK_NUMBERS = 2**17
# A column is constant when its standard deviation is no more than rounding makes of a constant: some 1e-16 of
# its mean per operation that computed it, hence relative to the mean with room to spare; and what is left of
# numbers near one that should have cancelled to zero, about 1e-16, for a mean of about zero. Data in units of
# 1e-9 are far above both.
_CONSTANT_RELATIVE = 1e-12
_CONSTANT_ABSOLUTE = 1e-15


class _Moments(NamedTuple):
    """Running moments by column, of the values less `shift`.

    `shift` is the first observed value: the mean is held relative to it, so that neither a large mean nor the
    merging of blocks costs digits, and the mean of a constant column is that constant exactly.
    """

    counts: NDArray[np.int64]
    shift: Array
    mean: Array
    m2: Array

    @classmethod
    def empty(cls, dim: int) -> _Moments:
        return cls(np.zeros(dim, np.int64), np.full(dim, np.nan), np.zeros(dim), np.zeros(dim))

    def add(self, values: Array) -> _Moments:
        """The moments with more rows; missing values (NaN) are left out."""
        moments = self
        block = max(1, _BLOCK_NUMBERS // max(1, values.shape[1]))
        for start in range(0, len(values), block):
            moments = moments._add_block(np.asarray(values[start : start + block], dtype=np.float64))
        return moments

    def _add_block(self, rows: Array) -> _Moments:
        """Chan, Golub and LeVeque's formula: exact merging of two sets of moments."""
        observed = ~np.isnan(rows)
        first = rows[observed.argmax(axis=0), np.arange(rows.shape[1])]
        shift = np.where(np.isnan(self.shift), first, self.shift)
        added = observed.sum(axis=0)
        counts = self.counts + added
        shifted = np.where(observed, rows - shift, 0.0)
        mean = shifted.sum(axis=0) / np.maximum(added, 1)
        deviations = np.where(observed, shifted - mean, 0.0)
        m2 = np.einsum("ij,ij->j", deviations, deviations)
        share = added / np.maximum(counts, 1)
        difference = mean - self.mean
        return _Moments(
            counts,
            shift,
            self.mean + difference * share,
            self.m2 + m2 + difference**2 * (self.counts * share),
        )

    def center(self) -> Array:
        return self.shift + self.mean

    def deviation(self) -> Array:
        """Standard deviations (division by the number of values)."""
        return np.sqrt(self.m2 / np.maximum(self.counts, 1))


@dataclass(frozen=True, eq=False)
class Scaling:
    """Centre and scale of each variable of one client; made by `from_values` or `given`.

    Parameters
    ----------
    center, scale : (d,) ndarray
        ``(values - center) / scale`` is what the solvers see.
    constant : (d,) ndarray of bool
        Columns that do not vary beyond rounding; their scale is 1.
    lower, upper : (d,) ndarray or None
        Values are clipped to these bounds before they are scaled. Those of the first fit are kept by
        `update`.
    n_rows : int
        Rows seen so far.
    """

    center: Array
    scale: Array
    constant: NDArray[np.bool_]
    lower: Array | None
    upper: Array | None
    n_rows: int
    _moments: _Moments | None = field(repr=False)
    _centered: bool = field(repr=False)
    _scaled: bool = field(repr=False)

    @classmethod
    def from_values(
        cls,
        values: Array,
        *,
        center: bool = True,
        scale: bool = True,
        clip: float | None = None,
        client: str = "",
        columns: Sequence[str] = (),
    ) -> Scaling:
        """Mean and standard deviation of the rows.

        Parameters
        ----------
        values : (T, d) array
            Finite, or NaN for missing values, which are ignored. Read in blocks of rows: memory maps stay on
            disk.
        center, scale : bool
            Without `center` the centre is 0, without `scale` the scale is 1. The scale is the standard
            deviation (around the mean, division by the number of values) whether or not the data are centred.
        clip : float, optional
            Winsorise at that many standard deviations on either side of the mean, both of the rows as they
            are. Constant columns are not clipped: their bounds would allow nothing but the constant.
        client, columns : str, sequence of str
            Names for messages.

        Warns
        -----
        ConstantColumnWarning
            Once, naming the columns that do not vary.

        Raises
        ------
        DataError
            If a column has no observed value.
        OptionError
            If `clip` is not positive.
        """
        if clip is not None and not clip > 0:
            raise OptionError(f"clip must be a positive number of standard deviations or None, not {clip!r}")
        moments = _Moments.empty(values.shape[1]).add(values)
        names = list(columns) or [str(number) for number in range(1, values.shape[1] + 1)]
        who = f"client {client!r}: " if client else ""
        unseen = [name for name, count in zip(names, moments.counts, strict=True) if count == 0]
        if unseen:
            raise DataError(f"{who}no value at all in column(s) {_listed(unseen)}; leave them out")
        fitted = cls._from_moments(moments, len(values), center, scale, None, None)
        constant = [name for name, flag in zip(names, fitted.constant, strict=True) if flag]
        if constant:
            warnings.warn(
                f"{who}column(s) {_listed(constant)} never change: their scale is taken as 1 and their "
                "forecast is the constant",
                ConstantColumnWarning,
                stacklevel=2,
            )
        if clip is None:
            return fitted
        width = np.where(fitted.constant, np.inf, clip * moments.deviation())
        return replace(fitted, lower=_frozen(moments.center() - width), upper=_frozen(moments.center() + width))

    @classmethod
    def _from_moments(
        cls,
        moments: _Moments,
        n_rows: int,
        center: bool,
        scale: bool,
        lower: Array | None,
        upper: Array | None,
    ) -> Scaling:
        """Centre and scale that moments give."""
        mean, deviation = moments.center(), moments.deviation()
        constant = deviation <= np.maximum(_CONSTANT_RELATIVE * np.abs(mean), _CONSTANT_ABSOLUTE)
        return cls(
            center=_frozen(mean if center else np.zeros_like(mean)),
            scale=_frozen(np.where(constant, 1.0, deviation) if scale else np.ones_like(mean)),
            constant=constant,
            lower=lower,
            upper=upper,
            n_rows=n_rows,
            _moments=moments,
            _centered=center,
            _scaled=scale,
        )

    @classmethod
    def given(
        cls,
        center: ArrayLike,
        scale: ArrayLike,
        *,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ) -> Scaling:
        """Public numbers instead of computed ones: nothing of the data is used, now or in `update`.

        Parameters
        ----------
        center, scale : (d,) array
            The scale must be positive.
        lower, upper : (d,) array, optional
            Clip bounds, both or neither.

        Raises
        ------
        OptionError
            If the lengths differ, a number is not finite, a scale is not positive, or bounds are the wrong
            way round.
        """
        centers = _numbers(center, "center")
        scales = _numbers(scale, "scale", len(centers))
        if not (np.isfinite(centers).all() and np.isfinite(scales).all() and (scales > 0).all()):
            raise OptionError("center and scale must be finite numbers, and every scale positive")
        if (lower is None) != (upper is None):
            raise OptionError("give both clip bounds, lower and upper, or neither")
        low = None if lower is None else _numbers(lower, "lower", len(centers))
        high = None if upper is None else _numbers(upper, "upper", len(centers))
        if low is not None and high is not None and not (low <= high).all():
            raise OptionError("every lower clip bound must be at most the upper one")
        return cls(
            centers,
            scales,
            np.zeros(len(centers), dtype=bool),
            low,
            high,
            0,
            None,
            _centered=True,
            _scaled=True,
        )

    def update(self, new_values: Array) -> Scaling:
        """The scaling after more rows: what a fit on all rows gives, up to rounding.

        The clip bounds stay those of the first fit: rows that were clipped then are not there any more to be
        clipped otherwise. Numbers that were `given` stay.
        """
        n_rows = self.n_rows + len(new_values)
        if self._moments is None:
            return replace(self, n_rows=n_rows)
        moments = self._moments.add(new_values)
        return self._from_moments(moments, n_rows, self._centered, self._scaled, self.lower, self.upper)

    def clip(self, values: Array) -> Array:
        """Values within the clip bounds; the array itself where there are none."""
        return values if self.lower is None else np.clip(values, self.lower, self.upper)

    def transform(self, values: Array) -> Array:
        """Clip, then ``(values - center) / scale``: a new array, the values are not touched."""
        scaled = np.subtract(self.clip(values), self.center, order="C", subok=False)
        scaled /= self.scale
        return scaled

    def inverse(self, scaled: Array) -> Array:
        """``scaled * scale + center``: original units, a new array."""
        values = np.multiply(scaled, self.scale, order="C", subok=False)
        values += self.center
        return values

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything as arrays, for a model file."""
        arrays: dict[str, NDArray[np.generic]] = {
            "center": self.center,
            "scale": self.scale,
            "constant": self.constant,
            "n_rows": np.array(self.n_rows, dtype=np.int64),
            "options": np.array([self._centered, self._scaled]),
        }
        if self.lower is not None and self.upper is not None:
            arrays |= {"lower": self.lower, "upper": self.upper}
        if self._moments is not None:
            arrays |= {f"moments_{name}": array for name, array in self._moments._asdict().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Scaling:
        """The scaling written by `to_arrays`; a missing array is a `KeyError`."""

        def numbers(name: str) -> Array:
            return _frozen(np.array(arrays[name], dtype=np.float64))

        moments = None
        if "moments_counts" in arrays:
            counts = np.array(arrays["moments_counts"], dtype=np.int64)
            moments = _Moments(counts, numbers("moments_shift"), numbers("moments_mean"), numbers("moments_m2"))
        centered, scaled = (bool(flag) for flag in arrays["options"])
        return cls(
            center=numbers("center"),
            scale=numbers("scale"),
            constant=np.array(arrays["constant"], dtype=bool),
            lower=numbers("lower") if "lower" in arrays else None,
            upper=numbers("upper") if "upper" in arrays else None,
            n_rows=int(np.asarray(arrays["n_rows"], dtype=np.int64)),
            _moments=moments,
            _centered=centered,
            _scaled=scaled,
        )


def _frozen(array: Array) -> Array:
    """The array, made read-only (only arrays made here are passed)."""
    array.flags.writeable = False
    return array


def _numbers(values: ArrayLike, name: str, length: int | None = None) -> Array:
    """A read-only copy of a vector given as an option."""
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or (length is not None and len(vector) != length):
        wanted = "one number for each variable" if length is None else f"{length} numbers, like center"
        raise OptionError(f"{name} must be {wanted}, not an array of shape {vector.shape}")
    return _frozen(vector)


def _listed(names: Sequence[str]) -> str:
    """Names for a message, not more than ten."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(repr(name) for name in names[:10]) + more
