"""A federated fit under a total privacy budget: what may leave a client, and what each does with the answer alone."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fedvar_fast._typing import FloatArray
from fedvar_fast.estimators.fedvar_tuning import attributes_of_paths, choose_rank, tune_given_shared
from fedvar_fast.estimators.options import Penalty, penalty_of
from fedvar_fast.estimators.state import ClientState
from fedvar_fast.exceptions import BudgetError, OptionError, PrivacyNoiseWarning
from fedvar_fast.federation.client import summarize
from fedvar_fast.federation.curator import Curator
from fedvar_fast.federation.private import DEFAULT_ROUNDS, MARGIN, PrivateFit, Progress, fit_private, private_rank
from fedvar_fast.federation.server import given_start
from fedvar_fast.federation.worth import tangent_square
from fedvar_fast.kernels import one_blas_thread
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.panel import ClientSeries, Panel, as_panel
from fedvar_fast.privacy.accounting import gaussian_mu
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.ledgerfile import FileLedger
from fedvar_fast.privacy.mechanism import Privacy
from fedvar_fast.privacy.report import PrivacyReport
from fedvar_fast.privacy.sensitivity import Neighbours
from fedvar_fast.scaling import Scaling
from fedvar_fast.solvers.riemannian import exact_reduced_rank

__all__ = ["check_private_options", "fit_privately", "keeps_own"]

#: Ranks above this are not voted for.
_LARGEST_RANK = 10


class Federated(Protocol):
    """What is needed of `FedVAR` here."""

    order: int
    rank: int | str
    init: str | FloatArray
    shared_solver: str
    ridge: float
    n_rounds: str | int
    step: str | float
    precondition: str | None
    l1_penalty: Penalty
    n_origins: int
    refit_every: int
    privacy: Privacy | None
    center: bool
    scale: bool
    clip: float | None
    n_jobs: int | None
    random_state: int | None

    def __getattr__(self, name: str) -> Any:
        """Methods of `FedVAR` and `PanelVAR`."""


def check_private_options(model: Federated) -> None:
    """Refuse, with what to use instead, options that would send something without noise."""
    privacy = model.privacy
    assert privacy is not None
    refusals = [
        (isinstance(model.init, str) and model.init == "local",
         "init='local' would send a client's own low-rank part as it is: use init='spectral', which is released with "
         "noise, or a matrix that is public"),
        (isinstance(model.step, str) and model.step == "cv",
         "step='cv' would send clean gradients and errors: use step='auto', which comes from released quantities"),
        (model.shared_solver == "exact",
         "shared_solver='exact' would send the moments as they are: use shared_solver='rounds'"),
        (bool(model.ridge), "ridge is not available under a total privacy budget, whose whitening has a floor: use 0"),
        (model.clip is not None,
         "clip= would take standard deviations from the data: use Privacy(bounds=...), which draws values in"),
        ((model.center or model.scale) and privacy.bounds is None,
         "centre and scale would be taken from the data: give Privacy(bounds=...), from which they are released with "
         "noise, or bring the data into public units and use center=False and scale=False"),
    ]  # fmt: skip
    for refused, sentence in refusals:
        if refused:
            raise OptionError(f"under Privacy(calibration='total') {sentence}.")


def _check_before_sending(model: Federated, data: Panel) -> None:
    """What must not fail once something is spent: lengths, rank, start and penalties."""
    dim = len(data.columns)
    width = dim * int(model.order)
    for name, series in data.items():
        model._check_length(series)
        if isinstance(model.l1_penalty, Mapping):
            penalty_of("l1_penalty", model.l1_penalty, name)
        if model._tunes_penalty() or isinstance(model.rank, str):
            model._check_origins(series, int(model.n_origins))
    if not isinstance(model.rank, str):
        model._checked_rank(int(model.rank), dim, width)
    if not isinstance(model.init, str):
        given_start(model.init, dim, width)


def open_curators(model: Federated, data: Panel, ledger: Ledger) -> tuple[dict[str, Curator], dict[str, ClientState]]:
    """The clients' gates, each with its scaling (public or released), and what the model keeps of each."""
    privacy = model.privacy
    assert privacy is not None
    bounds = privacy.column_bounds(data.columns)
    purposes = _purposes(model)
    curators, states = {}, {}
    for name in sorted(data):
        series = data[name]
        _warn_large_delta(privacy, series)
        curator = Curator(
            name, series.values, int(model.order), privacy, _neighbours(privacy, series, data.columns, model.order),
            privacy.mu_by_purpose(purposes), ledger, model.random_state, model.n_jobs, _note(model),
        )  # fmt: skip
        _open_ledger(ledger, curator, data.columns, _n_rounds(model))
        scaling = _scaling(model, curator, bounds, len(data.columns))
        curator.take_scaling(scaling, privacy.sensitive_columns(data.columns))
        curators[name] = curator
        states[name] = ClientState(
            curator.scaling,
            model._moments(series.values, curator.scaling),
            series.time.tail(int(model.order)),
            len(series),
        )
    return curators, {name: states[name] for name in data}


def _n_rounds(model: Federated) -> int:
    return DEFAULT_ROUNDS if isinstance(model.n_rounds, str) else int(model.n_rounds)


def _note(model: Federated) -> str:
    """By which a ledger knows the releases of one fit: a digest of what decides them."""
    assert model.privacy is not None
    init = model.init if isinstance(model.init, str) else np.asarray(model.init, dtype=np.float64).tobytes().hex()
    decides = [model.privacy.to_options(), model.order, model.rank, init, model.precondition, _n_rounds(model)]
    decides += [bool(model.center), bool(model.scale)]
    # Tuning stays at home, but for what it does to a vote.
    decides += [model.n_origins, model.refit_every] if isinstance(model.rank, str) else []
    return f"fit {hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"


def _purposes(model: Federated) -> list[str]:
    privacy = model.privacy
    assert privacy is not None
    needed = {
        "scale": model.center or model.scale,
        "rank": isinstance(model.rank, str),
        "whitening": True,
        "start": isinstance(model.init, str),
        "rounds": True,
        "clip": privacy.clip == "adaptive",
    }
    return [name for name, wanted in needed.items() if wanted]


def _neighbours(privacy: Privacy, series: ClientSeries, columns: tuple[str, ...], order: int) -> Neighbours:
    return Neighbours(
        privacy.unit, len(series), len(columns), int(order),
        n_sensitive=None if privacy.sensitive is None else len(privacy.sensitive_columns(columns)),
        bound=privacy.innovation_bound,
        stability=None if privacy.stability is None else (privacy.stability[0], privacy.stability[1]),
    )  # fmt: skip


def _scaling(model: Federated, curator: Curator, bounds: tuple[FloatArray, FloatArray] | None, dim: int) -> Scaling:
    low, high = (None, None) if bounds is None else bounds
    if bounds is not None and (model.center or model.scale):
        return curator.release_scaling(bounds[0], bounds[1], bool(model.center), bool(model.scale))
    return Scaling.given(np.zeros(dim), np.ones(dim), lower=low, upper=high)


def _check_budget(ledger: Ledger, curator: Curator, limit: float, n_rounds: int) -> None:
    """Refuse a fit that what other fits have spent leaves no room for, before it spends anything."""
    others = [one for one in ledger.releases(curator.name) if one.note != curator.note]
    units = {one.unit for one in others} - {curator.privacy.unit}
    if units:
        raise OptionError(
            f"the ledger of client {curator.name!r} counts for unit={units.pop()!r}, this fit is for "
            f"unit={curator.privacy.unit!r}: budgets of different units do not add up, use another folder"
        )
    left = limit**2 - sum(one.mu**2 for one in others)
    before = sum(mu**2 for what, mu in curator.strength.items() if what not in ("rounds", "clip"))
    each = sum(curator.strength.get(what, 0.0) ** 2 for what in ("rounds", "clip")) / n_rounds
    if left < (before + n_rounds * each) * (1.0 - 1e-9):
        raise BudgetError(
            f"the ledger of client {curator.name!r} leaves mu = {max(left, 0.0) ** 0.5:.4g} of {limit:.4g} for this "
            f"fit, which is enough for {max(int((left - before) / each), 0)} of its {n_rounds} rounds: other fits have "
            "spent the rest; take a larger epsilon if more may be given away, or the options of the fit before"
        )


def _open_ledger(ledger: Ledger, curator: Curator, columns: tuple[str, ...], n_rounds: int) -> None:
    if isinstance(ledger, FileLedger):
        public = {"columns": list(columns), "n_rows": len(curator.values), "order": curator.order}
        ledger.open(curator.name, public, curator.values)
    limit = gaussian_mu(curator.privacy.epsilon, curator.privacy.delta)
    ledger.limit(curator.name, limit)
    _check_budget(ledger, curator, limit, n_rounds)


def _warn_large_delta(privacy: Privacy, series: ClientSeries) -> None:
    if privacy.delta * len(series) >= 1.0:
        warnings.warn(
            f"delta={privacy.delta:g} is not below 1/T = 1/{len(series)} of client {series.name!r}: it allows a whole "
            "row to be published with that probability; use a smaller one",
            PrivacyNoiseWarning,
            stacklevel=6,
        )


def fit_shared_privately(
    model: Federated, curators: Mapping[str, Curator], rank: int, progress: Progress | None
) -> PrivateFit:
    """Stage I from releases, then each client's own choice.

    Where the noise is larger than what it leaves of the signal, nobody uses the answer; else each client compares it
    with its own reduced-rank regression, on its own rows, and tells nobody.
    """
    start = None if isinstance(model.init, str) else np.asarray(model.init, dtype=np.float64)
    ordered = [curators[name] for name in sorted(curators)]
    fit = fit_private(ordered, rank, model.precondition or "full", _n_rounds(model), start, progress)
    if not fit.informative:
        warnings.warn(
            "the noise of this private fit is larger than what its answer could add to the clients' own (signal "
            f"{fit.signal:.3g}, noise {fit.noise:.3g}): nothing is shared, and every client goes on with its own "
            "low-rank part; a larger epsilon, longer series, or more clients would help",
            PrivacyNoiseWarning,
            stacklevel=5,
        )
    return fit


def _own(moments: LaggedMoments, rank: int) -> FixedRank:
    """A client's own reduced-rank regression, which it sends to nobody."""
    return exact_reduced_rank(moments.xx / moments.n_rows, moments.yx / moments.n_rows, rank)


def keeps_own(curator: Curator, fit: PrivateFit) -> bool:
    """Whether a client's own low-rank part is the better estimate of ``A_0``: where the shared one is too noisy.

    In whitened coordinates half the client's gradient is the way from the shared part to its own. Its square holds the
    shared part's error once, and for the rest what its own rows and its own deviation make of the client's: the shared
    part is nearer to ``A_0`` where the rest is more than that error. The client looks at its rows as they are, and
    tells nobody what it chose.
    """
    if not fit.informative:
        return True
    pair = curator.clean_pair(fit.whitened, fit.whitener, curator.row_squares(fit.whitener))
    return 0.25 * tangent_square(pair, fit.whitened, fit.whitener) <= (1.0 + MARGIN) * fit.error


def fit_privately(model: Federated, panel: Any) -> Federated:
    """`FedVAR.fit` under a total budget."""
    check_private_options(model)
    data = as_panel(panel)
    _check_before_sending(model, data)
    privacy = model.privacy
    assert privacy is not None
    ledger = Ledger() if privacy.ledger is None else FileLedger(privacy.ledger)
    try:
        curators, states = open_curators(model, data, ledger)
        fitted = _fitted(model, data, curators, states, ledger)
    finally:
        if isinstance(ledger, FileLedger):
            ledger.close()
    model._adopt(data.columns, data.client_label, data.time_label, data.frame_kind)
    model._take(states, fitted)
    return model


def _fitted(
    model: Federated, data: Panel, curators: dict[str, Curator], states: dict[str, ClientState], ledger: Ledger
) -> dict[str, Any]:
    moments = {name: state.standardized() for name, state in states.items()}
    rank, votes = _rank(model, data, curators, states, moments)
    with one_blas_thread(), model._progress_bar() as progress:
        fit = fit_shared_privately(model, curators, rank, progress)
        points = _chosen_points(model, data, curators, states, fit, rank)
        moments = {name: state.standardized() for name, state in states.items()}
        tuned = _penalties(model, data, states, moments, points)
        deltas, gaps = {}, {}
        for name, one in moments.items():
            curvature = summarize(one).curvature
            deltas[name], gaps[name] = model._personal_part(one, points[name], tuned["l1_penalty_"][name], curvature)
    dense = fit.point.dense() if fit.informative else np.zeros(fit.point.shape)
    used = {name: point is fit.point for name, point in points.items()}
    assert model.privacy is not None
    report = PrivacyReport(model.privacy, ledger, fit.n_rounds)
    return tuned | {
        "A0_": dense,
        "deltas_": deltas,
        "coef_": {name: points[name].dense() + delta for name, delta in deltas.items()},
        "own_low_rank_": {name: points[name].dense() for name, shared in used.items() if not shared},
        "shared_used_": used,
        "signal_to_noise_": fit.signal / fit.noise,
        "gap_": gaps,
        "rank_": rank,
        "client_ranks_": votes,
        "n_rounds_": fit.n_rounds,
        "step_": 0.5,
        "step_factor_": 1.0,
        "history_": {"change": np.array(fit.changes), "clip_norm": np.array(fit.clip_norms)},
        "shared_gradient_norm_": None,
        "local_start_": None,
        "init_": model.init if isinstance(model.init, str) else "given",
        "privacy_record_": report.to_dict(),
    }


def _chosen_points(
    model: Federated,
    data: Panel,
    curators: Mapping[str, Curator],
    states: dict[str, ClientState],
    fit: PrivateFit,
    rank: int,
) -> dict[str, FixedRank]:
    """The low-rank part that each client goes on from; one that keeps its own goes back to its own scaling, too."""
    points = {}
    for name, series in data.items():
        points[name] = fit.point
        if keeps_own(curators[name], fit):
            states[name] = model._client_state(series, data.columns)
            points[name] = _own(states[name].standardized(), rank)
    return points


def _rank(
    model: Federated,
    data: Panel,
    curators: Mapping[str, Curator],
    states: dict[str, ClientState],
    moments: dict[str, LaggedMoments],
) -> tuple[int, dict[str, int | None]]:
    """Given, or the one with most noisy votes (a client's own vote stays with it)."""
    if not isinstance(model.rank, str):
        return int(model.rank), {}
    low_rank = model._local_low_rank(data, states, everyone=True)
    _, votes, _ = choose_rank(low_rank, moments)
    most = min(*next(iter(moments.values())).yx.shape, _LARGEST_RANK)
    rank = private_rank([(curators[name], votes[name]) for name in sorted(curators)], most)
    return rank, votes


def _penalties(
    model: Federated,
    data: Panel,
    states: dict[str, ClientState],
    moments: dict[str, LaggedMoments],
    points: Mapping[str, FixedRank],
) -> dict[str, Any]:
    """Stage II's penalties as fitted attributes, given or tuned by each client on its own rows."""
    if not model._tunes_penalty():
        return {"l1_penalty_": {name: model._penalty(name, one) for name, one in moments.items()}, "tuning_": {}}
    paths = {}
    for name, state in states.items():
        origins = model._origins(data[name], state, int(model.n_origins), int(model.refit_every))
        paths[name] = tune_given_shared(name, origins, [points[name]], model.l1_penalty)
    return attributes_of_paths(paths)
