"""How far one neighbouring data set can move each release of a client, in Frobenius (Euclidean) norm.

A client holds ``y_t`` (``d`` values, some perhaps missing) in ``T_raw`` rows. With order ``p`` that makes
``T = T_raw - p`` responses; both numbers are public and do not change. Centre and scale per column are released
first and constant from there on: ``z_t = (y_t - centre) / scale``, ``x_t = [z_{t-1}; ...; z_{t-p}]``. A tilde
says that a vector was projected onto a ball: ``||x~|| <= c_x`` for regressors, ``||y~|| <= c_y`` for responses.
Projections onto convex sets do not expand distances, which most proofs below use.

A row that lacks a value it needs contributes zero to its release. The second moment needs the regressors *only*:
to drop its row also where just the response is missing would move it further than is said here.

Source: the units and the clipping are those of the method's privacy section, innovation being the paper's own
definition of neighbours; the paper takes its sensitivity as given, and all bounds here are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from fedvar_fast.exceptions import OptionError, OptionTypeError
from fedvar_fast.privacy.accounting import real_option

__all__ = ["Neighbours", "RowNorms"]

_UNITS = ("observation", "innovation", "client")


@dataclass(frozen=True)
class RowNorms:
    """Bounds on what a gradient row ``e_t w_t'`` is made of, with which a small step in the data moves it little.

    They must hold for *every* data set, not only for the one at hand. Where rows are projected first,
    ``regressors = ||P|| c_x`` and ``residuals = c_y + ||A|| c_x`` always do.

    Parameters
    ----------
    coefficients : float
        ``||A||`` (operator norm) of ``e_t = A x_t - y_t``, in the units of ``z``; may be zero.
    whitener : float
        ``||P||`` (operator norm) of ``w_t = P x_t``; 1 without whitening.
    regressors, residuals : float
        Bounds on ``||w_t||`` and ``||e_t||``.

    Raises
    ------
    OptionError, OptionTypeError
        When a bound is negative, not finite, or not a number; only `coefficients` may be zero.
    """

    coefficients: float
    whitener: float
    regressors: float
    residuals: float

    def __post_init__(self) -> None:
        if not 0.0 <= real_option("coefficients", self.coefficients) < math.inf:
            raise OptionError(f"coefficients must be finite and not negative, got {self.coefficients}.")
        for name in ("whitener", "regressors", "residuals"):
            _positive(name, getattr(self, name))


@dataclass(frozen=True)
class Neighbours:
    """Which data sets must be hard to tell apart, and so how far each release of one client can move.

    Parameters
    ----------
    unit : {"observation", "innovation", "client"}
        What the neighbouring data set replaces: one row ``y_s``, in its sensitive columns; one innovation at
        some time ``s`` (within the sample or before it) with all that follows from it; or everything.
    n_rows : int
        ``T_raw``, all rows of the client, those with missing values included; more than `order`.
    dim : int
        Number of columns ``d``.
    order : int
        Number of lags ``p``.
    n_sensitive : int, optional
        Observation unit: how many columns of the row may differ; by default all.
    width : float, default inf
        Observation unit: ``b = ||(hi - lo) / scale||`` over the sensitive columns, when their values are
        clamped to ``[lo, hi]`` before everything else. ``dataclasses.replace`` sets it once the scale is out.
    missing_is_public : bool, default False
        Observation unit: do not protect *whether* a value is missing. Without this a neighbour may turn a value
        missing, which takes whole rows out of a release however small `width` is.
    bound : float, optional
        Innovation unit: largest distance ``||eps_s - eps_s*||`` of two innovations in the units of ``y``, that
        is twice their largest norm.
    stability : (float, float), optional
        Innovation unit: ``(M, rho)``, ``M >= 1`` and ``0 <= rho < 1``, with which the moving average matrices
        obey ``||Psi_h|| <= M rho^h``; so ``||delta y_{s+h}|| <= bound M rho^h``.
    smallest_scale : float, optional
        Innovation unit: the smallest scale of a column, needed by what is released after the scale.

    Raises
    ------
    OptionError
        When a value is out of range, missing, or belongs to another unit.
    OptionTypeError
        When a value is of the wrong type.

    Notes
    -----
    Under the observation unit ``y_s`` stands in ``p + 1`` rows: as the response of row ``s`` and as one lag block
    in each of the rows ``s+1, ..., s+p``. All methods count no more rows than there are.

    Examples
    --------
    >>> Neighbours("observation", n_rows=102, dim=5, order=2).count()
    0.03
    """

    unit: str
    n_rows: int
    dim: int
    order: int
    n_sensitive: int | None = field(default=None, kw_only=True)
    width: float = field(default=math.inf, kw_only=True)
    missing_is_public: bool = field(default=False, kw_only=True)
    bound: float | None = field(default=None, kw_only=True)
    stability: tuple[float, float] | None = field(default=None, kw_only=True)
    smallest_scale: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.unit not in _UNITS:
            raise OptionError(f"unit={self.unit!r} is unknown: choose one of {', '.join(map(repr, _UNITS))}.")
        for name in ("n_rows", "dim", "order"):
            _whole(name, getattr(self, name))
        if self.n_rows <= self.order:
            raise OptionError(f"n_rows must be more than order, got {self.n_rows} rows for order {self.order}.")
        if not real_option("width", self.width) > 0.0:
            raise OptionError(f"width must be positive, or inf where no bounds are declared, got {self.width}.")
        if self.smallest_scale is not None:
            _positive("smallest_scale", self.smallest_scale)
        if not isinstance(self.missing_is_public, bool):
            raise OptionTypeError(f"missing_is_public must be True or False, got {self.missing_is_public!r}.")
        if self.unit != "observation" and (self.n_sensitive is not None or self.missing_is_public):
            raise OptionError(f'n_sensitive and missing_is_public are for unit="observation", not for "{self.unit}".')
        if self.n_sensitive is not None and _whole("n_sensitive", self.n_sensitive) > self.dim:
            raise OptionError(f"n_sensitive must be at most the number of columns {self.dim}, got {self.n_sensitive}.")
        self._check_innovation()

    def _check_innovation(self) -> None:
        if self.unit != "innovation":
            if self.bound is not None or self.stability is not None:
                raise OptionError(f'bound and stability are for unit="innovation", not for "{self.unit}".')
            return
        if self.bound is None or self.stability is None:
            raise OptionError(
                'unit="innovation" needs bound (how far one innovation may move) and stability=(M, rho): declare both.'
            )
        _positive("bound", self.bound)
        if not isinstance(self.stability, tuple) or len(self.stability) != 2:
            raise OptionTypeError(f"stability must be a pair (M, rho), got {self.stability!r}.")
        factor, rho = real_option("stability M", self.stability[0]), real_option("stability rho", self.stability[1])
        if not (1.0 <= factor < math.inf and 0.0 <= rho < 1.0):
            raise OptionError(f"stability=(M, rho) needs 1 <= M < inf and 0 <= rho < 1, got ({factor}, {rho}).")

    @property
    def relation(self) -> str:
        """What a neighbouring data set is, in one phrase of plain words, assumptions included."""
        if self.unit == "client":
            return "all rows of one client replaced"
        if self.unit == "innovation":
            factor, rho = self._stability
            return (
                f"one innovation replaced and propagated, assuming that it moves by at most {self.bound:g}, that its "
                f"effect h steps later is at most {factor:g} * {rho:g}^h times that, and that missing values stay "
                "where they are"
            )
        text = "one row replaced"
        if self.n_sensitive is not None and self.n_sensitive < self.dim:
            text += f" in {self.n_sensitive} of its {self.dim} columns"
        return text + (", missing values staying where they are" if self.missing_is_public else "")

    def scale(self, half_width: float | None = None) -> float:
        """Sensitivity of the means of all columns that centre and scale are computed from.

        It bounds the centre (the means of u), and half of it the mean absolute deviations from a released point, drawn
        into [0, 1]: these two are what is sent. Derived for ``mean_t u_tj`` and ``mean_t u_tj^2`` together, over the
        ``T_raw`` rows and for all ``j``, with ``u_tj = (clamp(y_tj, lo_j, hi_j) - mid_j) / half_j`` in ``[-1, 1]`` and
        a missing value read as 0.

        - observation: ``2 sqrt(n_sensitive) / T_raw``, and no less. In one column ``(u, u^2)`` moves by
          ``(a-b)^2 (1 + (a+b)^2) <= D^2 (1 + (2-D)^2)`` squared, ``D = |a-b|``; that rises in ``D`` up to 4.
        - innovation: ``sum_h min(2 sqrt(d), sqrt(5) bound M rho^h / half_width) / T_raw`` over the first ``T_raw``
          steps. The factor ``1 + (a+b)^2`` is at most 5, and ``||delta u|| <= ||delta y|| / half_width``.
        - client: ``2 sqrt(d)``. Means are convex combinations, and a set is as wide as its convex hull.

        Parameters
        ----------
        half_width : float, optional
            Innovation unit: the smallest ``half_j``.

        Raises
        ------
        OptionError, OptionTypeError
            When `half_width` is needed and not given, or not a positive finite number.

        Notes
        -----
        Source: ours.
        """
        if self.unit == "client":
            return 2.0 * math.sqrt(self.dim)
        if self.unit == "observation":
            return 2.0 * math.sqrt(self._n_sensitive) / self.n_rows
        if half_width is None:
            raise OptionError('unit="innovation" needs half_width, half the narrowest declared column range.')
        rho = self._stability[1]
        slope = math.sqrt(5.0) * self._first_step(_positive("half_width", half_width))
        return _capped_sum(2.0 * math.sqrt(self.dim), slope, rho, self.n_rows) / self.n_rows

    def second_moment(self, x_norm: float) -> float:
        """Sensitivity of ``(1/T) sum_t x~_t x~_t'`` with ``||x~_t|| <= c_x``, over rows with complete regressors.

        - observation: ``min(p, T)/T`` times the most that one row moves, ``max(b (2 c_x - b), b sqrt(2 c_x^2 -
          b^2/2))`` with ``b = min(width, sqrt(2) c_x)``: ``sqrt(2) c_x^2`` without bounds. If a value can turn
          missing and ``width`` is finite, no less than ``c_x^2``. Proof: with ``x = m + v``, ``x* = m - v``
          the move is ``sqrt(8) sqrt(|m|^2 |v|^2 + (m'v)^2)``, convex in ``|m'v|`` for ``|m|^2 + |v|^2 +
          2|m'v| = c_x^2``: largest where ``m`` is orthogonal or parallel to ``v``.
        - innovation: ``(1/T) sum_h min(sqrt(2) c_x^2, 2 c_x delta_h)`` with the ``delta_h >= ||delta x_{s+h}||``
          of the Notes; ``xx' - x*x*' = x (x-x*)' + (x-x*) x*'``.
        - client: ``sqrt(2) c_x^2``. ``||S - S*||^2 = ||S||^2 + ||S*||^2 - 2<S, S*>``, where both are positive
          semidefinite with trace at most ``c_x^2``, so that ``<S, S*> >= 0``.

        Parameters
        ----------
        x_norm : float
            ``c_x``.

        Raises
        ------
        OptionError, OptionTypeError
            When `x_norm` is not a positive finite number, or ``smallest_scale`` is needed and not given.

        Notes
        -----
        ``delta_h = bound M / smallest_scale * (sum_k rho^{2(h-k)})^{1/2}``, ``1 <= k <= min(h, p)``: a row holds the
        lags ``s+h-k``, and nothing before ``s`` moves. From ``h = p`` on that is a geometric series. With ``rho = 0``
        exactly ``p`` rows move. Source: ours.
        """
        radius = _positive("x_norm", x_norm)
        cap = math.sqrt(2.0) * radius * radius
        if self.unit == "client":
            return cap
        if self.unit == "observation":
            total = self._replaced((0.0, _outer_move(radius, self.width)), (0.0, radius * radius))
        else:
            total = self._propagated(cap, 0.0, 2.0 * radius)
        return total / self._n_responses

    def cross_moment(self, x_norm: float, y_norm: float) -> float:
        """Sensitivity of ``(1/T) sum_t y~_t x~_t'`` with ``||x~_t|| <= c_x`` and ``||y~_t|| <= c_y``.

        - observation: the response row moves by at most ``c_x min(2 c_y, width)``, each of ``p`` lag rows by
          ``c_y min(2 c_x, width)``: ``2 (p+1) c_x c_y / T`` without bounds. If a value can turn missing, no less
          than ``(p+1) c_x c_y / T``. In each row only one of the two factors moves.
        - innovation: ``(1/T) sum_h min(2 c_x c_y, c_y ||delta x_{s+h}|| + c_x ||delta y_{s+h}||)``, with the steps of
          :meth:`second_moment`; ``yx' - y*x*' = y (x-x*)' + (y-y*) x*'``.
        - client: ``2 c_x c_y``, twice the largest norm.

        Parameters
        ----------
        x_norm, y_norm : float
            ``c_x`` and ``c_y``.

        Raises
        ------
        OptionError, OptionTypeError
            When a norm is not a positive finite number, or ``smallest_scale`` is needed and not given.

        Notes
        -----
        Source: ours.
        """
        radius_x, radius_y = _positive("x_norm", x_norm), _positive("y_norm", y_norm)
        cap = 2.0 * radius_x * radius_y
        if self.unit == "client":
            return cap
        if self.unit == "observation":
            moved = radius_x * min(2.0 * radius_y, self.width), radius_y * min(2.0 * radius_x, self.width)
            total = self._replaced(moved, (radius_x * radius_y, radius_x * radius_y))
        else:
            total = self._propagated(cap, radius_x, radius_y)
        return total / self._n_responses

    def gradient(self, clip_norm: float, norms: RowNorms | None = None) -> float:
        """Sensitivity of the clipped projected gradient.

        The release is ``(2/T) sum_t clip_c(H_t)``, ``H_t = P_T(e_t w_t')``, ``e_t = A x_t - y_t``, ``w_t = P x_t``;
        with the client unit ``clip_c((2/T) sum_t H_t)`` instead, the whole message. Clipping and ``P_T`` are
        projections, hence ``||clip_c(H) - clip_c(H*)|| <= min(2c, ||(e-e*) w' + e* (w-w*)'||)``.

        - observation: ``(2/T)`` times ``min(2c, ||w|| b)`` for the response row, and ``min(2c, (||A|| ||w|| + ||e||
          ||P||) b)`` for each of ``p`` lag rows: ``4 (p+1) c / T`` without `norms` or ``width``. If a value can turn
          missing, no less than ``2 (p+1) c / T``.
        - innovation: ``(2/T) sum_h min(2c, (||A|| ||w|| + ||e|| ||P||) ||delta x_{s+h}|| + ||w|| ||delta y_{s+h}||)``,
          with the steps of :meth:`second_moment`; without `norms` every later row can move by ``2c``.
        - client: ``2c``, twice the largest norm.

        Parameters
        ----------
        clip_norm : float
            ``c``: of each row, with the client unit of the whole message.
        norms : RowNorms, optional
            Bounds that hold for every data set. The client unit has no use for them.

        Raises
        ------
        OptionError, OptionTypeError
            When `clip_norm` is not a positive finite number, or ``smallest_scale`` is needed and not given.

        Notes
        -----
        Source: ours.
        """
        clip = _positive("clip_norm", clip_norm)
        cap = 2.0 * clip
        if self.unit == "client":
            return cap
        if norms is None or (self.unit == "observation" and math.isinf(self.width)):
            return 2.0 * cap * self.count()
        per_x = norms.coefficients * norms.regressors + norms.residuals * norms.whitener
        per_y = norms.regressors
        if self.unit == "observation":
            moved = min(cap, per_y * self.width), min(cap, per_x * self.width)
            total = self._replaced(moved, (clip, clip))
        else:
            total = self._propagated(cap, per_y, per_x)
        return 2.0 * total / self._n_responses

    def count(self) -> float:
        """Sensitivity of a share of rows, such as ``(1/T) #{t: ||H_t|| <= c}``.

        - observation: ``(p+1)/T``, the rows that hold the replaced observation.
        - innovation: 1. A row may change sides however little it moves, and every later row moves. With ``rho = 0``
          only ``p + 1`` rows do.
        - client: 1.

        Notes
        -----
        Source: ours.
        """
        if self.unit == "client" or (self.unit == "innovation" and self._stability[1] > 0.0):
            return 1.0
        return self._held(1.0, 1.0) / self._n_responses

    def vote(self) -> float:
        """Sensitivity of a vote, a vector with a single one (or none): ``sqrt(2)``, whatever is replaced.

        Two different votes differ by ``+1`` in one place and ``-1`` in another; a vote and none by 1.

        Notes
        -----
        Source: ours.
        """
        return math.sqrt(2.0)

    @property
    def _n_responses(self) -> int:
        return self.n_rows - self.order

    @property
    def _n_sensitive(self) -> int:
        return self.dim if self.n_sensitive is None else self.n_sensitive

    @property
    def _stability(self) -> tuple[float, float]:
        assert self.stability is not None  # checked on construction
        return self.stability

    def _first_step(self, divisor: float) -> float:
        """``bound M / divisor``: the response to the innovation at once, in the units that `divisor` is one of."""
        assert self.bound is not None  # checked on construction
        return self.bound * self._stability[0] / divisor

    def _held(self, response: float, lag: float) -> float:
        """Sum over the rows that hold one observation: as the response of one, as a lag of up to ``p`` later ones.

        Short series have fewer: an observation before the first response is no response, a late one less often a lag.
        """
        n = self._n_responses
        return max(response + min(self.order, n - 1) * lag, min(self.order, n) * lag)

    def _replaced(self, moved: tuple[float, float], zeroed: tuple[float, float]) -> float:
        """Most that the rows move when one observation is replaced, or turns missing; (response row, lag row) each."""
        total = self._held(*moved)
        return total if self.missing_is_public else max(total, self._held(*zeroed))

    def _propagated(self, cap: float, per_y: float, per_x: float) -> float:
        """``sum_h min(cap, per_y ||delta y_{s+h}|| + per_x ||delta x_{s+h}||)`` over at most ``T`` rows."""
        if self.smallest_scale is None:
            raise OptionError('unit="innovation" needs smallest_scale, the smallest scale of a column: set it.')
        rho = self._stability[1]
        step = self._first_step(self.smallest_scale)

        def lags(h: int) -> float:
            return math.hypot(*(rho**k for k in range(h)))

        first = sum(min(cap, step * (per_y * rho**h + per_x * lags(h))) for h in range(self.order))
        slope = step * (per_y * rho**self.order + per_x * lags(self.order))
        rest = _capped_sum(cap, slope, rho, self._n_responses)
        return min(self._n_responses * cap, first + rest)


def _outer_move(radius: float, step: float) -> float:
    """Largest ``||xx' - x*x*'||`` with ``||x||, ||x*|| <= radius`` and ``||x - x*|| <= step``."""
    step = min(step, math.sqrt(2.0) * radius)
    orthogonal = step * math.sqrt(2.0 * radius * radius - step * step / 2.0)
    return max(step * (2.0 * radius - step), orthogonal)


def _capped_sum(cap: float, slope: float, rho: float, n: int) -> float:
    """``sum_{i < n} min(cap, slope rho^i)``: as many caps as there are, and the rest of the geometric series."""
    if rho == 0.0:
        return min(cap, slope)
    n_capped = 0
    if slope > cap:
        exact = (math.log(slope) - math.log(cap)) / -math.log(rho)
        if exact >= n:
            return n * cap
        n_capped = math.ceil(exact)
    geometric = -math.expm1((n - n_capped) * math.log(rho)) / (1.0 - rho)
    return n_capped * cap + slope * rho**n_capped * geometric


def _positive(name: str, value: object) -> float:
    number = real_option(name, value)
    if not 0.0 < number < math.inf:
        raise OptionError(f"{name} must be positive and finite, got {number}.")
    return number


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise OptionTypeError(f"{name} must be a whole number, got {value!r} of type {type(value).__name__}.")
    if value < 1:
        raise OptionError(f"{name} must be at least 1, got {value}.")
    return int(value)
