"""What all estimators share: data in, scaling, moments, forecasts in the user's units, updating, files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError

from fedvar_fast import forecast as _forecast
from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.estimators.frames import FrameShape
from fedvar_fast.estimators.options import is_number
from fedvar_fast.estimators.state import (
    ClientState,
    arrays_under,
    join_attribute,
    moment_arrays,
    moments_from,
    split_attribute,
)
from fedvar_fast.exceptions import DataError, OptionError, OptionTypeError, UnstableModelWarning
from fedvar_fast.kernels import resolve_n_jobs
from fedvar_fast.modelfile import write_model
from fedvar_fast.moments import LaggedMoments, check_order, lagged_moments
from fedvar_fast.panel import ClientSeries, Panel, as_panel
from fedvar_fast.scaling import Scaling
from fedvar_fast.timeaxis import TimeAxis
from fedvar_fast.tuning import RollingOrigins

__all__ = ["PanelVAR"]

#: Rows that are winsorised at a time, so that no second copy of a long series is made.
_CLIP_ROWS = 65_536


class PanelVAR(BaseEstimator):
    """Base of the estimators of one VAR per client; a subclass has its options in ``__init__``, and `_estimate`."""

    #: Fitted attributes of a subclass that its model files hold beyond `coef_`.
    _saved_attributes: ClassVar[tuple[str, ...]] = ()
    can_update = True  # whether `update` takes new rows in

    order: int
    center: bool
    scale: bool
    clip: float | None
    n_jobs: int | None
    random_state: int | None
    verbose: bool

    # -- fitting ---------------------------------------------------------------------------------------------

    def fit(self, panel: Any, y: None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        panel : Panel, or anything `fedvar_fast.as_panel` takes
            A dict of frames or arrays by client, one long frame, or one frame or array for a single client.
        y : None
            Ignored; scikit-learn's convention.

        Returns
        -------
        self

        Raises
        ------
        OptionError, OptionTypeError
            An option out of its range.
        DataError, DataTypeError
            Data that cannot be used; the text names client, column and row.
        """
        self._check_options()
        data = as_panel(panel)
        states = {name: self._client_state(series, data.columns) for name, series in data.items()}
        tuned = self._tune(data, states)
        fitted = self._estimate(states, tuned)
        self._adopt(data.columns, data.client_label, data.time_label, data.frame_kind)
        self._take(states, fitted)
        return self

    def _tune(self, data: Panel, states: dict[str, ClientState]) -> dict[str, Any]:
        """What the data choose, as fitted attributes; needs the series, so `update` keeps what `fit` chose."""
        return {}

    def _estimate(
        self, states: dict[str, ClientState], tuned: dict[str, Any], continuing: bool = False
    ) -> dict[str, Any]:
        """Fitted attributes (those tuned included) from the clients' states; nothing of `self` is changed.

        `continuing` is True when a fitted model takes in new rows.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it is fitted")

    def _check_options(self) -> None:
        check_order(self.order)
        resolve_n_jobs(self.n_jobs)
        for name in ("center", "scale", "verbose"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise OptionTypeError(f"{name}={getattr(self, name)!r} is neither True nor False")
        if self.clip is not None and not (is_number(self.clip) and self.clip > 0):
            raise OptionError(f"clip={self.clip!r} is no positive number of standard deviations (None: no clipping)")
        seed = self.random_state
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0):
            raise OptionTypeError(f"random_state={seed!r} is neither None nor a whole number, 0 or more")

    def _check_length(self, series: ClientSeries) -> None:
        order = check_order(self.order)
        if len(series) < order + 2:
            raise DataError(
                f"client {series.name!r} has {len(series)} rows, order {order} needs at least {order + 2}: "
                "take a smaller order, or leave the client out"
            )

    def _client_state(self, series: ClientSeries, columns: Sequence[str]) -> ClientState:
        self._check_length(series)
        scaling = Scaling.from_values(
            series.values, center=self.center, scale=self.scale, clip=self.clip, client=series.name, columns=columns
        )
        moments = self._moments(series.values, scaling)
        if moments.n_rows < 2:
            raise DataError(
                f"client {series.name!r} has {moments.n_rows} rows whose {self.order} lags are all there, 2 or more "
                "are needed: fill the missing values, or take a smaller order"
            )
        return ClientState(scaling, moments, series.time.tail(int(self.order)), len(series))

    def _moments(self, values: FloatArray, scaling: Scaling) -> LaggedMoments:
        if scaling.lower is None:
            return lagged_moments(values, self.order, center=scaling.center, n_jobs=self.n_jobs)
        blocks = (scaling.clip(values[i : i + _CLIP_ROWS]) for i in range(0, len(values), _CLIP_ROWS))
        return lagged_moments(blocks, self.order, center=scaling.center, n_jobs=self.n_jobs)

    def _check_origins(self, series: ClientSeries, n_origins: int) -> None:
        if len(series) < (needed := n_origins + 2 * check_order(self.order) + 2):
            raise DataError(
                f"client {series.name!r} has {len(series)} rows, tuning on {n_origins} origins at order {self.order} "
                f"needs {needed}: use fewer origins, give the penalties, or leave the client out"
            )

    def _origins(self, series: ClientSeries, state: ClientState, n_origins: int, refit_every: int) -> RollingOrigins:
        """Rolling forecasts of the last `n_origins` rows of a client, in the units of the whole training part."""
        self._check_origins(series, n_origins)
        order, rows = int(self.order), len(series) - n_origins
        before = self._moments(series.values[:rows], state.scaling)
        moments = before.standardized(state.scaling.center, state.scaling.scale)
        origins = RollingOrigins(moments, state.scaling.transform(series.values[rows - order :]), refit_every)
        if moments.n_rows < 2 or not any(len(y) for _, _, y in origins):
            raise DataError(
                f"client {series.name!r} has too many missing values to tune on its last {n_origins} rows: fill them, "
                "use other origins, or give the penalties"
            )
        return origins

    def _adopt(self, columns: Sequence[str], client_label: str, time_label: str, frame_kind: str) -> None:
        self.columns_ = tuple(columns)
        self.client_label_, self.time_label_, self.frame_kind_ = client_label, time_label, frame_kind

    def _take(self, states: dict[str, ClientState], fitted: dict[str, Any], unchanged: Sequence[str] = ()) -> None:
        """Become the fitted model; of the clients named `unchanged`, what was computed already stays."""
        self._states = states
        known = self._lazy if unchanged else {}
        self._lazy: dict[str, dict[str, Any]] = {
            what: {name: values[name] for name in unchanged if name in values} for what, values in known.items()
        }
        self.clients_ = tuple(states)
        self.n_rows_ = {name: state.n_rows for name, state in states.items()}
        self.center_ = {name: state.scaling.center for name, state in states.items()}
        self.scale_ = {name: state.scaling.scale for name, state in states.items()}
        for name, value in fitted.items():
            setattr(self, name, value)

    def frozen(self) -> Self:
        """An unfitted copy whose options that the data chose (``"cv"``, ``"auto"``) are what this fit chose.

        So that a model can be tuned once and fitted again and again: rolling evaluations, production jobs.
        """
        self._check_fitted()
        copy: Self = clone(self)
        return copy.set_params(**self._chosen_options())

    def _chosen_options(self) -> dict[str, Any]:
        """Options that this fit chose from the data, as values; none by default."""
        return {}

    def update(self, new_rows: Any) -> Self:
        """Take in new rows of some or all clients, and fit again, at the cost of the new rows and of the solvers.

        The answer is that of a fit on all rows together (centre and scale included, up to rounding), except that
        the winsorising bounds of `clip`, and options that the data chose (``"cv"``, ``"auto"``), stay those of `fit`.
        Private fits add up: the rounds are noised anew, and the ledger goes on.

        Parameters
        ----------
        new_rows : like `fit`
            Each client's rows must continue where it ended.

        Returns
        -------
        self

        Raises
        ------
        DataError
            An unknown client, other columns, times that do not continue.
        """
        self._check_refit()
        data = self._same_columns(new_rows)
        states = dict(self._states)
        for name, series in data.items():
            if name not in states:
                raise DataError(
                    f"client {name!r} is new; update knows {', '.join(map(repr, self.clients_))}: use add_client"
                )
            states[name] = self._updated(name, states[name], series)
        self._take(states, self._estimate(states, self._tuned(), continuing=True))
        return self

    def _updated(self, name: str, state: ClientState, series: ClientSeries) -> ClientState:
        if state.moments.xx.size == 0:
            raise DataError("this model was saved without its moments and cannot be updated: fit again")
        try:
            time = state.time.append(series.time)
        except DataError as error:
            raise DataError(f"client {name!r}: {error}") from error
        scaling = state.scaling.update(series.values)
        moments = state.moments.update(scaling.clip(series.values), n_jobs=self.n_jobs)
        return ClientState(scaling, moments, time.tail(check_order(self.order)), state.n_rows + len(series))

    def _same_columns(self, data: Any) -> Panel:
        panel = as_panel(data)
        positional = not any(series.time.has_times for _, series in panel.items())
        default_names = panel.columns == tuple(f"y{i}" for i in range(1, len(panel.columns) + 1))
        if positional and default_names and len(panel.columns) == len(self.columns_):
            return panel  # arrays: by position
        if set(panel.columns) != set(self.columns_):
            raise DataError(
                f"the columns are {', '.join(map(repr, panel.columns))}; the model was fitted on "
                f"{', '.join(map(repr, self.columns_))}"
            )
        return panel.reorder(columns=self.columns_)

    def _check_fitted(self) -> None:
        if not hasattr(self, "coef_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")

    def _tuned(self) -> dict[str, Any]:
        """What `fit` chose, from the fitted attributes."""
        return {}

    def _check_refit(self) -> None:
        self._check_fitted()
        self._check_options()
        fitted = next(iter(self._states.values())).moments.order
        if fitted != self.order:
            raise OptionError(f"order={self.order!r}, but the model was fitted with order {fitted}: fit it again")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    # -- what is computed when asked for ---------------------------------------------------------------------

    def _cached(self, what: str, compute: Any) -> dict[str, Any]:
        self._check_fitted()
        known = self._lazy.setdefault(what, {})
        for name in self.clients_:
            if name not in known:
                known[name] = compute(name)
        return {name: known[name] for name in self.clients_}

    @property
    def noise_cov_(self) -> dict[str, FloatArray]:
        """Covariance of the one-step residuals of the scaled data by client, (d, d), division by ``T``."""
        return self._cached("noise_cov", self._noise_cov)

    def _noise_cov(self, client: str) -> FloatArray:
        return self._states[client].standardized().residual_covariance(self.coef_[client])

    @property
    def spectral_radius_(self) -> dict[str, float]:
        """Largest modulus of the companion matrix's eigenvalues by client; below 1 the model is stable."""
        return self._cached("spectral_radius", lambda client: _forecast.spectral_radius(self.coef_[client]))

    # -- forecasts -------------------------------------------------------------------------------------------

    def forecast(self, steps: int, level: float | Sequence[float] | None = None) -> Any:
        """Forecasts from the end of every client's series, in the user's units.

        Parameters
        ----------
        steps : int
            How many, at least 1.
        level : float or sequence of float, optional
            Percent (such as 90) of prediction intervals, from ``sum_{i<h} Psi_i Sigma Psi_i'`` and the normal law;
            the uncertainty of the coefficients is left out.

        Returns
        -------
        frame of the user's own kind
            Columns client, time and one per variable. With `level`, in long form: client, time, variable, mean,
            level, lower, upper.

        Raises
        ------
        OptionError
            ``steps`` below 1, a level outside (0, 100).
        DataError
            A client whose last ``order`` rows have missing values.

        Warns
        -----
        UnstableModelWarning
            When a client's model is explosive and more than one step is asked for.
        """
        self._check_fitted()
        if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 1:
            raise OptionError(f"steps={steps!r} is not a number of forecasts: give a whole number, 1 or more")
        levels = _levels(level)
        if steps > 1:
            self._warn_unstable()
        means = self.forecast_values(int(steps))
        times = {client: self._states[client].time.extend(int(steps)).to_labels() for client in self.clients_}
        if levels is None:
            return self._frames().wide(means, times)
        deviations = {client: self._deviations(client, int(steps)) for client in self.clients_}
        return self._frames().intervals(means, deviations, times, levels)

    def forecast_values(self, steps: int) -> dict[str, FloatArray]:
        """The same forecasts as arrays (steps, d) by client, in the user's units."""
        self._check_fitted()
        return {client: self._forecast_client(client, steps) for client in self.clients_}

    def _forecast_client(self, client: str, steps: int) -> FloatArray:
        state = self._states[client]
        recent = state.recent()
        if np.isnan(recent).any():
            row, column = np.argwhere(np.isnan(recent))[0]
            raise DataError(
                f"client {client!r} has a missing value in column {self.columns_[column]!r}, {len(recent) - row} rows "
                "from its end: a forecast needs its last rows whole, so fill it first"
            )
        scaled = _forecast.iterate(self.coef_[client], recent, steps, state.scaling.constant)
        return state.scaling.inverse(scaled)

    def _deviations(self, client: str, steps: int) -> FloatArray:
        """Standard deviations of the forecast errors (steps, d), in the user's units."""
        scaling = self._states[client].scaling
        variance = _forecast.forecast_variances(self.coef_[client], self.noise_cov_[client], steps)
        return np.sqrt(variance) * np.where(scaling.constant, 0.0, scaling.scale)

    def _frames(self) -> FrameShape:
        return FrameShape(self.columns_, self.client_label_, self.time_label_, self.frame_kind_)

    def _warn_unstable(self) -> None:
        explosive = [f"{name!r} ({radius:.4g})" for name, radius in self.spectral_radius_.items() if radius >= 1.0]
        if explosive:
            warnings.warn(
                f"the fitted model of client {', '.join(explosive)} has a spectral radius of 1 or more: its forecasts "
                "grow without bound with the horizon",
                UnstableModelWarning,
                stacklevel=3,
            )

    def predict(self, panel: Any) -> Any:
        """One-step predictions within a panel: each row from the ``order`` rows before it.

        Parameters
        ----------
        panel : like `fit`
            Clients of the model, its columns.

        Returns
        -------
        frame of the kind given
            Columns client, time and one per variable; the first ``order`` rows of a client have no prediction.
        """
        self._check_fitted()
        data = self._same_columns(panel)
        values, times = {}, {}
        for name, series in data.items():
            if name not in self._states:
                raise DataError(f"client {name!r} is unknown; the model knows {', '.join(map(repr, self.clients_))}")
            scaling = self._states[name].scaling
            scaled = _forecast.one_step(self.coef_[name], scaling.transform(series.values))
            scaled[:, scaling.constant] = self._states[name].recent()[-1, scaling.constant]
            values[name] = scaling.inverse(scaled)
            times[name] = list(series.time.to_labels())[len(series) - len(scaled) :]
        return self._frames().wide(values, times)

    def coef_original(self, client: str) -> FloatArray:
        """Coefficients (d, pd) in the user's units: ``diag(s) A_j diag(1/s)`` by lag."""
        self._check_fitted()
        scale = self._state_of(client).scaling.scale
        order = self.coef_[client].shape[1] // len(scale)
        return self.coef_[client] * np.outer(scale, np.tile(1.0 / scale, order))

    def intercept_original(self, client: str) -> FloatArray:
        """Intercepts (d,) in the user's units: ``c - sum_j A_j c``, with ``c`` the centre."""
        coef = self.coef_original(client)
        center = self._states[client].scaling.center
        return center - coef @ np.tile(center, coef.shape[1] // len(center))

    def _state_of(self, client: str) -> ClientState:
        if client not in self._states:
            raise DataError(f"client {client!r} is unknown; the model knows {', '.join(map(repr, self.clients_))}")
        return self._states[client]

    # -- files -----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, moments: bool = True) -> None:
        """Write the model to a file, whole or not at all; forecasts of the loaded model are the same bit for bit.

        The file holds every client's coefficients, centre, scale and last ``order`` rows: whoever has it can
        forecast, and sees these.

        Parameters
        ----------
        path : path
        moments : bool
            Also keep the lagged moments (``(pd)^2`` numbers a client), without which a loaded model cannot be updated.

        Raises
        ------
        ModelFileError
            When the file cannot be written.
        """
        self._check_fitted()
        params, arrays = self._saved_params()
        clients = []
        for i, (name, state) in enumerate(self._states.items()):
            clients.append({"name": name, "time": state.time.to_dict(), "n_rows": state.n_rows})
            arrays |= {f"client/{i}/scaling/{key}": value for key, value in state.scaling.to_arrays().items()}
            arrays |= {f"client/{i}/moments/{key}": value for key, value in moment_arrays(state.moments, moments)}
            arrays[f"client/{i}/noise_cov"] = self.noise_cov_[name]
        attributes: dict[str, Any] = {}
        for name in ("coef_", *self._saved_attributes):
            split_attribute(getattr(self, name), name, attributes, arrays)
        labels = [self.client_label_, self.time_label_, self.frame_kind_]
        header = {
            "class": type(self).__name__, "params": params, "columns": list(self.columns_), "labels": labels,
            "clients": clients, "attributes": attributes, "has_moments": moments,
        }  # fmt: skip
        write_model(path, header, arrays)

    def _saved_params(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        params, arrays = {}, {}
        for name, value in self.get_params(deep=False).items():
            if isinstance(value, np.ndarray):
                arrays[f"param/{name}"] = value
            else:
                params[name] = self._param_to_json(name, value)
        return params, arrays

    def _param_to_json(self, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): float(number) for key, number in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [float(number) for number in value]
        return value.item() if isinstance(value, np.generic) else value

    @classmethod
    def _param_from_json(cls, name: str, value: Any) -> Any:
        return value

    @classmethod
    def _restore(cls, header: dict[str, Any], arrays: dict[str, AnyArray]) -> Self:
        params = {name: cls._param_from_json(name, value) for name, value in header["params"].items()}
        params |= {key.removeprefix("param/"): value for key, value in arrays.items() if key.startswith("param/")}
        model = cls(**params)
        states, noise = {}, {}
        for i, client in enumerate(header["clients"]):
            scaling = Scaling.from_arrays(arrays_under(arrays, f"client/{i}/scaling/"))
            moments = moments_from(arrays_under(arrays, f"client/{i}/moments/"))
            states[client["name"]] = ClientState(scaling, moments, TimeAxis.from_dict(client["time"]), client["n_rows"])
            noise[client["name"]] = arrays[f"client/{i}/noise_cov"]
        model._adopt(header["columns"], *header["labels"])
        fitted = {
            name: join_attribute(name, header["attributes"], arrays) for name in ("coef_", *cls._saved_attributes)
        }
        model._take(states, fitted)
        model._lazy["noise_cov"] = noise
        return model


def _levels(level: float | Sequence[float] | None) -> list[float] | None:
    if level is None:
        return None
    levels: list[Any] = list(level) if isinstance(level, Sequence | np.ndarray) else [level]
    if not levels:
        raise OptionError("level is an empty list: give percentages such as [80, 95], or None")
    for one in levels:
        if not is_number(one) or not 0 < one < 100:
            raise OptionError(f"level={one!r} is not a percentage between 0 and 100, such as 90")
    return [float(one) for one in levels]
