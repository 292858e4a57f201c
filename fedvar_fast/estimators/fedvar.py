"""The federated estimator: one shared low-rank matrix, one sparse deviation per client."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.estimators.fedvar_private import check_private_options, fit_privately
from fedvar_fast.estimators.fedvar_summary import record_choices, summary_of
from fedvar_fast.estimators.fedvar_tuning import (
    attributes_of_paths,
    choose_rank,
    local_start,
    tune_given_shared,
    tune_shared,
)
from fedvar_fast.estimators.local import LocalVAR
from fedvar_fast.estimators.options import Penalty, check_penalty, is_given, matrix, one_of, penalty_of, positive, whole
from fedvar_fast.estimators.state import ClientState
from fedvar_fast.exceptions import DataError, OptionError, OptionTypeError
from fedvar_fast.federation.client import personal_part, summarize
from fedvar_fast.federation.inprocess import Progress, SharedFit, SharedOptions, fit_shared
from fedvar_fast.kernels import one_blas_thread
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.panel import Panel
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.mechanism import Privacy
from fedvar_fast.privacy.report import PrivacyReport
from fedvar_fast.solvers.whitening import PRECONDITIONERS

__all__ = ["FedVAR"]


class FedVAR(PanelVAR):
    """Federated vector autoregression ``A_k = A_0 + Delta_k`` (paper, section 2.3).

    Stage I estimates the shared low-rank ``A_0`` from projected gradients,
    ``A_0 <- SVD_r(A_0 - step sum_k (T_k/T) P_T(G_k + W_k))``; Stage II gives each client its own sparse
    ``Delta_k = argmin (1/T_k) sum ||y_t - (A_0 + D) x_t||^2 + l1_penalty ||D||_1``.
    Each variable of each client is centred and scaled first; forecasts come back in the user's units.

    Parameters
    ----------
    order : int
        Lags ``p``.
    rank : "auto" or int
        Rank of ``A_0``, at most ``min(d, pd)``; 0: nothing is shared. ``"auto"``: the mode of the clients' votes,
        each by the ridge-ratio rule on its own `LocalVAR` low-rank part (see `select_rank`).
    init : "spectral", "local" or array, shape (d, pd)
        Start of Stage I, truncated to the rank: one gradient step from zero; the local low-rank part of the client
        with most rows (where that is zero, the spectral start, and a warning); or a given matrix.
    shared_solver : {"rounds", "exact"}
        Gradient rounds as in the paper, or the closed form (ridge reduced-rank regression) that they converge to.
    ridge : float
        Adds ``ridge ||A_0||_F^2`` to Stage I.
    n_rounds : "auto" or int
        ``ceil(10 log T)``, or so many.
    step : "auto", "cv" or float
        Step of Stage I: ``1/H``, ``H = sum_k (T_k/T)(2/T_k)||S_k||_op``, which is safe; the multiple of it that
        forecasts best; or a number.
    precondition : {"full", "nystrom", "diagonal"}, optional
        Rounds in coordinates that the clients' pooled second moments whiten: a few of them do where the moments are
        ill conditioned and plain ones need hundreds. Always (``"full"`` by default) under a total privacy budget.
    shared_tol : float
        Rounds stop early when an iterate moves by less than this fraction of its norm (never under privacy).
    l1_penalty : "cv", "rate", float, mapping of client to float, or sequence of floats
        Penalty of ``Delta_k``. ``"cv"`` chooses for each client from a grid below its zero threshold by rolling
        one-step forecasts, a sequence is taken as that grid; ``"rate"`` takes ``2 sqrt(log(pd)/T_k)``, the order the
        paper's theory asks for, with unit noise, as scaled data have.
    local_iter : int
        FISTA steps of Stage II.
    local_tol : float, optional
        Go on to this relative duality gap instead.
    n_origins, refit_every : int
        Of the rolling forecasts that tune: the last `n_origins` rows, fitted anew every `refit_every`.
    privacy : Privacy, optional
        Gaussian noise on every round's message; `privacy_report_` then says what it amounts to.
    engine : {"in-process"}
    center, scale : bool
        Subtract each variable's mean, divide by its standard deviation.
    clip : float, optional
        Winsorise at that many standard deviations first.
    n_jobs : int, optional
        Threads; every core by default. No answer depends on it.
    random_state : int, optional
        Only for ``Privacy(reproducible=True)``.
    verbose : bool
        A progress bar on standard error (needs tqdm).

    Attributes
    ----------
    A0_ : ndarray, shape (d, pd)
    deltas_, coef_ : dict of client to ndarray, shape (d, pd)
        Of the scaled data; see `coef_original`.
    rank_, n_rounds_, step_ : int, int, float or None
    client_ranks_ : dict of client to int or None
        The votes of ``rank="auto"`` (None: the local low-rank part is zero); empty otherwise.
    l1_penalty_ : dict of client to float
    tuning_ : dict of client to dict
        The grid and the mean squared rolling errors over it; empty where nothing was tuned.
    history_ : dict
        ``loss`` (pooled, at every iterate and at the end; absent under privacy) and ``change``.
    shared_gradient_norm_ : float or None
        Norm of the projected gradient of Stage I's objective at ``A_0``; None under privacy.
    gap_ : dict of client to float
        Duality gap of Stage II relative to its loss at zero.
    center_, scale_, noise_cov_, spectral_radius_ : dict
    shared_used_ : dict of client to bool
        Whether a client goes on from ``A_0`` or, where noise makes that worse for it, from its own low-rank part.
    own_low_rank_ : dict of client to ndarray, shape (d, pd)
        That part, of the clients that do; ``coef_`` is its sum with ``deltas_`` then.
    signal_to_noise_ : float or None
        Of ``A_0`` under a total privacy budget, from released quantities.
    privacy_report_ : PrivacyReport or None
    """

    _saved_attributes: ClassVar[tuple[str, ...]] = (
        "A0_", "deltas_", "rank_", "n_rounds_", "step_", "history_", "shared_gradient_norm_", "gap_", "l1_penalty_",
        "privacy_record_", "client_ranks_", "tuning_", "step_factor_", "local_start_", "init_", "own_low_rank_",
        "shared_used_", "signal_to_noise_",
    )  # fmt: skip

    def __init__(
        self,
        order: int = 1,
        rank: int | str = "auto",
        *,
        init: str | FloatArray = "spectral",
        shared_solver: str = "rounds",
        ridge: float = 0.0,
        n_rounds: str | int = "auto",
        step: str | float = "auto",
        precondition: str | None = None,
        shared_tol: float = 1e-12,
        l1_penalty: Penalty = "cv",
        local_iter: int = 20,
        local_tol: float | None = None,
        n_origins: int = 20,
        refit_every: int = 5,
        privacy: Privacy | None = None,
        engine: str = "in-process",
        center: bool = True,
        scale: bool = True,
        clip: float | None = None,
        n_jobs: int | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.order = order
        self.rank = rank
        self.init = init
        self.shared_solver = shared_solver
        self.ridge = ridge
        self.n_rounds = n_rounds
        self.step = step
        self.precondition = precondition
        self.shared_tol = shared_tol
        self.l1_penalty = l1_penalty
        self.local_iter = local_iter
        self.local_tol = local_tol
        self.n_origins = n_origins
        self.refit_every = refit_every
        self.privacy = privacy
        self.engine = engine
        self.center = center
        self.scale = scale
        self.clip = clip
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    # -- options ---------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        super()._check_options()
        if isinstance(self.rank, str):
            one_of("rank", self.rank, ("auto",))
        else:
            whole("rank", self.rank, 0)
        one_of("shared_solver", self.shared_solver, ("rounds", "exact"))
        one_of("engine", self.engine, ("in-process",))
        if self.precondition is not None:
            one_of("precondition", self.precondition, PRECONDITIONERS)
        if isinstance(self.init, str):
            one_of("init", self.init, ("spectral", "local"))
        else:
            matrix("init", self.init)
        if isinstance(self.n_rounds, str):
            one_of("n_rounds", self.n_rounds, ("auto",))
        else:
            whole("n_rounds", self.n_rounds, 1)
        if isinstance(self.step, str):
            one_of("step", self.step, ("auto", "cv"))
        else:
            positive("step", self.step, strict=True)
        check_penalty("l1_penalty", self.l1_penalty, ("cv", "rate"))
        whole("n_origins", self.n_origins, 1)
        whole("refit_every", self.refit_every, 1)
        positive("ridge", self.ridge)
        positive("shared_tol", self.shared_tol)
        whole("local_iter", self.local_iter, 0)
        if self.local_tol is not None:
            positive("local_tol", self.local_tol)
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise OptionTypeError(f"privacy={self.privacy!r} is no fedvar_fast.Privacy(epsilon, delta, ...)")

    def _penalty(self, client: str, moments: LaggedMoments) -> float:
        if isinstance(self.l1_penalty, str):
            return 2.0 * math.sqrt(math.log(max(moments.yx.shape[1], 2)) / moments.n_rows)
        return penalty_of("l1_penalty", self.l1_penalty, client)

    def _starts_local(self) -> bool:
        return isinstance(self.init, str) and self.init == "local"

    def _tunes_penalty(self) -> bool:
        return self.l1_penalty != "rate" if isinstance(self.l1_penalty, str) else not is_given(self.l1_penalty)

    def fit(self, panel: Any, y: None = None) -> Self:
        """Fit the model; under a total privacy budget everything that leaves a client is noised and in its ledger."""
        self._check_options()
        if self.privacy is not None and self.privacy.calibration == "total":
            check_private_options(self)
            if self.rank != 0:
                fit_privately(self, panel)
                return self
        return super().fit(panel)

    # -- tuning ----------------------------------------------------------------------------------------------

    def _tune(self, data: Panel, states: dict[str, ClientState]) -> dict[str, Any]:
        moments = {name: state.standardized() for name, state in states.items()}
        tuned: dict[str, Any] = {"client_ranks_": {}, "tuning_": {}, "step_factor_": 1.0, "local_start_": None}
        tuned["init_"] = self.init if isinstance(self.init, str) else "given"
        rank, low_rank = self.rank, {}
        if isinstance(rank, str) or (self._starts_local()):
            low_rank = self._local_low_rank(data, states, everyone=isinstance(rank, str))
        if isinstance(rank, str):
            rank, tuned["client_ranks_"], _ = choose_rank(low_rank, moments)
        tuned["rank_"] = self._checked_rank(int(rank), *_shape(moments))
        if self._starts_local():
            longest = max(low_rank, key=lambda name: states[name].n_rows)
            tuned["local_start_"] = local_start(low_rank[longest], longest, tuned["rank_"])
        return tuned | self._tuned_by_origins(data, states, moments, tuned)

    def _checked_rank(self, rank: int, dim: int, width: int) -> int:
        if rank > min(dim, width):
            raise OptionError(f"rank={rank} is above min(d, pd) = {min(dim, width)} for a {dim} x {width} matrix")
        return rank

    def _local_low_rank(self, data: Panel, states: dict[str, ClientState], everyone: bool) -> dict[str, FloatArray]:
        """Low-rank parts of the clients alone: of all, or of the one with most rows."""
        chosen = states
        if not everyone:
            longest = max(states, key=lambda name: states[name].n_rows)
            chosen = {longest: states[longest]}
        local = LocalVAR(self.order, n_origins=self.n_origins, refit_every=self.refit_every, tol=1e-6)
        parts: dict[str, FloatArray] = local._estimate(chosen, local._tune(data, chosen))["low_rank_"]
        return parts

    def _tuned_by_origins(
        self, data: Panel, states: dict[str, ClientState], moments: dict[str, LaggedMoments], tuned: dict[str, Any]
    ) -> dict[str, Any]:
        tune_step = isinstance(self.step, str) and self.step == "cv"
        if not (tune_step or self._tunes_penalty()):
            return {}
        origins = {
            name: self._origins(data[name], state, int(self.n_origins), int(self.refit_every))
            for name, state in states.items()
        }
        if self.privacy is not None and not tune_step:
            # The penalties wait for the noisy A_0: tuning on a clean one would send clean messages.
            return {"_origins": origins}
        penalty = self.l1_penalty
        if isinstance(penalty, str) and penalty == "rate":
            penalty = {name: self._penalty(name, one) for name, one in moments.items()}
        found = tune_shared(origins, self._shared_options(tuned), penalty, tune_step)
        chosen = {"step_factor_": found.step_factor}
        return chosen | ({"_origins": origins} if self.privacy is not None else attributes_of_paths(found.paths))

    def _tuned(self) -> dict[str, Any]:
        if self._starts_local() and self.init_ != "local":
            raise OptionError("init='local' needs the series, which an update does not have: fit again")
        names = ("init_", "client_ranks_", "tuning_", "step_factor_", "local_start_", "rank_", "l1_penalty_")
        return {name: getattr(self, name) for name in names}

    def _chosen_options(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        if isinstance(self.rank, str):
            chosen["rank"] = self.rank_
        if self._tunes_penalty():
            chosen["l1_penalty"] = dict(self.l1_penalty_)
        if isinstance(self.step, str) and self.step == "cv":
            chosen["step"] = "auto" if self.step_ is None else self.step_
        if self._starts_local():
            chosen["init"] = "spectral" if self.local_start_ is None else self.local_start_
        return chosen

    @property
    def can_update(self) -> bool:  # type: ignore[override]
        """Whether `update` takes new rows in: not under a total privacy budget, which was for the rows of the fit."""
        return self.privacy is None or self.privacy.calibration == "paper"

    # -- fitting ---------------------------------------------------------------------------------------------

    def _estimate(
        self, states: dict[str, ClientState], tuned: dict[str, Any], continuing: bool = False
    ) -> dict[str, Any]:
        if continuing and self.privacy is not None and self.privacy.calibration == "total":
            raise OptionError(
                "a private model is not updated: its budget was for the rows of its fit; fit again on all rows, with a "
                "budget of its own"
            )
        moments = {name: state.standardized() for name, state in states.items()}
        tuned = tuned | self._given_options(moments)
        ledger = self._running_ledger(continuing)
        if self.privacy is not None and not continuing:
            record_choices(ledger, moments, isinstance(self.rank, str), self._starts_local(), self.step == "cv")
        # One BLAS thread throughout: our loops share the cores, and no sum depends on how many there are.
        with one_blas_thread():
            shared = self._shared_fit(moments, ledger, tuned)
            origins = tuned.pop("_origins", None)
            if origins is not None and self._tunes_penalty():
                paths = {
                    name: tune_given_shared(name, one, [shared.point], self.l1_penalty) for name, one in origins.items()
                }
                tuned = tuned | attributes_of_paths(paths)
            fitted = self._personal(moments, tuned["l1_penalty_"], shared)
        report = None if self.privacy is None else PrivacyReport(self.privacy, ledger, shared.n_rounds)
        return (
            tuned
            | fitted
            | {
                "n_rounds_": shared.n_rounds,
                "step_": shared.step,
                "history_": shared.history,
                "shared_gradient_norm_": shared.gradient_norm,
                "privacy_record_": None if report is None else report.to_dict(),
                "own_low_rank_": {},
                "shared_used_": dict.fromkeys(moments, True),
                "signal_to_noise_": None,
            }
        )

    def _given_options(self, moments: dict[str, LaggedMoments]) -> dict[str, Any]:
        """What the options say outright, whatever an earlier fit chose."""
        given: dict[str, Any] = {}
        if not isinstance(self.rank, str):
            given["rank_"] = self._checked_rank(int(self.rank), *_shape(moments))
        if not self._tunes_penalty():
            given["l1_penalty_"] = {name: self._penalty(name, one) for name, one in moments.items()}
        if not (isinstance(self.step, str) and self.step == "cv"):
            given["step_factor_"] = 1.0
        return given

    def _running_ledger(self, continuing: bool) -> Ledger:
        """A copy of the ledger so far when a fitted model is updated, so that totals go on; else a new one."""
        report = self.privacy_report_ if continuing else None
        return Ledger() if report is None else Ledger(report.ledger.releases())

    def _shared_options(self, tuned: dict[str, Any]) -> SharedOptions:
        start = None if isinstance(self.init, str) else self.init
        return SharedOptions(
            rank=tuned["rank_"],
            solver=self.shared_solver,
            ridge=float(self.ridge),
            n_rounds=None if isinstance(self.n_rounds, str) else int(self.n_rounds),
            step=None if isinstance(self.step, str) else float(self.step),
            start=tuned["local_start_"] if self._starts_local() else start,
            tol=float(self.shared_tol),
            step_factor=float(tuned["step_factor_"]),
            precondition=self.precondition,
        )

    def _shared_fit(self, moments: dict[str, LaggedMoments], ledger: Ledger, tuned: dict[str, Any]) -> SharedFit:
        with self._progress_bar() as progress:
            return fit_shared(moments, self._shared_options(tuned), self.privacy, ledger, self.random_state, progress)

    @contextlib.contextmanager
    def _progress_bar(self) -> Iterator[Progress | None]:
        """What Stage I calls after every round; None unless `verbose`."""
        if not self.verbose:
            yield None
            return
        from tqdm import tqdm

        with tqdm(desc="Stage I", unit="round") as bar:

            def advance(done: int, planned: int) -> None:
                bar.total = planned
                bar.update(done - bar.n)

            yield advance

    def _personal(
        self, moments: dict[str, LaggedMoments], penalties: dict[str, float], shared: SharedFit
    ) -> dict[str, Any]:
        dense = shared.point.dense()
        deltas, gaps = {}, {}
        for name, one in moments.items():
            result = self._personal_part(one, shared.point, penalties[name], shared.curvatures[name])
            deltas[name], gaps[name] = result
        return {
            "A0_": dense,
            "deltas_": deltas,
            "coef_": {name: dense + delta for name, delta in deltas.items()},
            "gap_": gaps,
        }

    def _personal_part(
        self, moments: LaggedMoments, shared: FloatArray | FixedRank, penalty: float, curvature: float
    ) -> tuple[FloatArray, float]:
        result = personal_part(
            moments, shared, penalty, n_iter=int(self.local_iter), tol=self.local_tol, curvature=curvature,
            n_jobs=self.n_jobs,
        )  # fmt: skip
        return result.coef, result.gap

    def add_client(self, name: str, series: Any) -> Self:
        """Give a new client its own ``Delta_k`` on the ``A_0`` as it stands (Stage II only; nothing leaves it).

        Parameters
        ----------
        name : str
        series : one frame or array
            The model's columns.

        Returns
        -------
        self

        Raises
        ------
        DataError
            A name that is taken, other columns, data that cannot be used.
        """
        self._check_refit()
        name = str(name)
        if name in self._states:
            raise DataError(f"client {name!r} is in the model already: use update for new rows")
        panel = self._same_columns({name: series})
        state = self._client_state(panel[name], self.columns_)
        moments = state.standardized()
        if self._tunes_penalty():
            origins = self._origins(panel[name], state, int(self.n_origins), int(self.refit_every))
            shared = FixedRank.from_dense(self.A0_, self.rank_)
            tuned = attributes_of_paths({name: tune_given_shared(name, origins, [shared], self.l1_penalty)})
            penalty = tuned["l1_penalty_"][name]
        else:
            tuned = {"tuning_": {}}
            penalty = self._penalty(name, moments)
        delta, gap = self._personal_part(moments, self.A0_, penalty, summarize(moments).curvature)
        self._take(
            self._states | {name: state},
            {
                "deltas_": self.deltas_ | {name: delta},
                "coef_": self.coef_ | {name: self.A0_ + delta},
                "gap_": self.gap_ | {name: gap},
                "l1_penalty_": self.l1_penalty_ | {name: penalty},
                "tuning_": self.tuning_ | tuned["tuning_"],
            },
            unchanged=self.clients_,
        )
        return self

    # -- reports ---------------------------------------------------------------------------------------------

    @property
    def privacy_report_(self) -> PrivacyReport | None:
        """What left each client and what it amounts to; None without privacy."""
        self._check_fitted()
        return None if self.privacy_record_ is None else PrivacyReport.from_dict(self.privacy_record_)

    def summary(self) -> str:
        """The fit in words: shape, rounds, and a line per client."""
        self._check_fitted()
        return summary_of(self)

    # -- files -----------------------------------------------------------------------------------------------

    def _param_to_json(self, name: str, value: Any) -> Any:
        if isinstance(value, Privacy):
            return value.to_options()
        return super()._param_to_json(name, value)

    @classmethod
    def _param_from_json(cls, name: str, value: Any) -> Any:
        if name == "privacy" and value is not None:
            return Privacy(**value)
        return value


def _shape(moments: dict[str, LaggedMoments]) -> tuple[int, int]:
    dim, width = next(iter(moments.values())).yx.shape
    return dim, width
