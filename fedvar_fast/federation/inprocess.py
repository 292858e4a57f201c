"""All clients in this process: the reference engine. It only carries messages between client and server steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedvar_fast import kernels
from fedvar_fast._typing import FloatArray
from fedvar_fast.exceptions import OptionError
from fedvar_fast.federation import client as client_side
from fedvar_fast.federation import server
from fedvar_fast.federation.messages import ClientSummary
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.moments import LaggedMoments, pool_moments
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.mechanism import Privacy, kappa_from_scale, noise_generator
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState
from fedvar_fast.solvers.whitening import whitener

__all__ = ["SharedFit", "SharedOptions", "fit_shared"]

#: Called after every round with (rounds done, rounds planned).
Progress = Callable[[int, int], None]


#: An iterate that has grown by more than this factor is no estimate of anything.
_LARGEST_GROWTH = 1e6


@dataclass(frozen=True)
class SharedOptions:
    """What Stage I is asked to do; `None` means the paper's default.

    Attributes
    ----------
    rank : int
    solver : {"rounds", "exact"}
    ridge : float
    n_rounds : int or None
        ``ceil(10 log T)``.
    step : float or None
        ``1/H``, the safe step.
    start : ndarray or None
        Spectral.
    step_factor : float
        Multiple of the safe step, where `step` is None.
    precondition : {"full", "nystrom", "diagonal"}, optional
        Rounds in coordinates that the pooled second moments whiten (see `solvers.whitening`).
    tol : float
        Rounds stop early when ``step ||Z|| / ||A_0||`` falls to this; never under privacy.
    """

    rank: int
    solver: str = "rounds"
    ridge: float = 0.0
    n_rounds: int | None = None
    step: float | None = None
    start: FloatArray | None = None
    tol: float = 0.0
    step_factor: float = 1.0
    precondition: str | None = None


@dataclass(frozen=True)
class SharedFit:
    """Stage I's answer.

    Attributes
    ----------
    point : FixedRank
        ``A_0``.
    n_rounds : int
        Rounds really made.
    step : float or None
        None where no step was needed.
    curvatures : dict
        ``(2/T_k)||S_k||_op`` by client, for Stage II.
    history : dict
        ``loss`` (rounds + 1, the last at the returned point) and ``change`` (rounds); no ``loss`` under privacy.
    gradient_norm : float or None
        ``||P_T(grad)||_F`` at the returned point, the optimality measure; None under privacy.
    """

    point: FixedRank
    n_rounds: int
    step: float | None
    curvatures: dict[str, float]
    history: dict[str, FloatArray] = field(default_factory=dict)
    gradient_norm: float | None = None


@dataclass
class _ClientNoise:
    """One client's noise for a whole fit: its level, its assumed sensitivity and its stream."""

    kappa: float
    sigma: float
    generator: np.random.Generator


def fit_shared(
    moments: Mapping[str, LaggedMoments],
    options: SharedOptions,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    random_state: int | None = None,
    progress: Progress | None = None,
) -> SharedFit:
    """Stage I over clients in this process.

    Messages are summed in the order of the clients' names, so that the answer does not depend on the order in
    which they were given.

    Parameters
    ----------
    moments : mapping of client to LaggedMoments
        In the units that are fitted (scaled), all of one order and dimension.
    options : SharedOptions
    privacy : Privacy, optional
        Noise on every round's message.
    ledger : Ledger, optional
        Every release is written down here first; needed with `privacy`.
    random_state : int, optional
        For ``Privacy(reproducible=True)`` only.
    progress : callable, optional

    Returns
    -------
    SharedFit

    Raises
    ------
    OptionError
        A zero start, a start of the wrong shape, data without any variation, ``"exact"`` under privacy.
    """
    names = sorted(moments)
    ordered = [moments[name] for name in names]
    summaries = [client_side.summarize(one) for one in ordered]
    curvatures = {name: summary.curvature for name, summary in zip(names, summaries, strict=True)}
    weights = server.client_weights(summaries)
    shape = ordered[0].yx.shape
    if privacy is None:
        # Without noise the weighted sum of the clients' gradients is the gradient of the pooled moments: one
        # client's cost instead of K. The answer is the same up to rounding.
        names, ordered, weights = ["all clients"], [pool_moments(ordered)], np.ones(1)
    if options.rank == 0:
        return SharedFit(FixedRank.zero(*shape), 0, None, curvatures)
    if options.solver == "exact":
        if privacy is not None:
            raise OptionError(
                "shared_solver='exact' sends each client's moments as they are, which no noise protects: "
                "use shared_solver='rounds' with privacy"
            )
        messages = [client_side.moments_message(one) for one in ordered]
        point = server.closed_form(messages, weights, options.rank, options.ridge)
        return _finish(point, 0, None, curvatures, ordered, weights, options, [], [])
    if options.precondition is not None:
        if privacy is not None:
            raise OptionError(
                f"precondition={options.precondition!r} needs the clients' second moments, which calibration='paper' "
                "would send as they are: use Privacy(calibration='total'), which releases them with noise"
            )
        return _preconditioned(ordered, weights, curvatures, options, progress)
    ledger = Ledger() if ledger is None else ledger
    if options.step is None and privacy is not None:
        _record_all(ledger, names, "curvature for the step size", 1)
    step = options.step
    if step is None:
        safe = server.safe_step(summaries, server.client_weights(summaries), options.ridge)
        step = options.step_factor * safe
    start = _start(names, ordered, weights, step, options, privacy, ledger)
    noise = None if privacy is None else _noise(privacy, names, ordered, random_state)
    return _rounds(start, step, names, ordered, summaries, weights, curvatures, options, noise, ledger, progress)


def _preconditioned(
    ordered: list[LaggedMoments],
    weights: FloatArray,
    curvatures: dict[str, float],
    options: SharedOptions,
    progress: Progress | None,
) -> SharedFit:
    """Rounds in whitened coordinates; the ridge is part of their second moments, and of the losses in the history.

    The safe step there is close to one half, and a round close to Newton's.
    """
    pooled = pool_moments(ordered)
    ridge = options.ridge * np.eye(len(pooled.xx))
    with kernels.one_blas_thread():
        white = whitener(pooled.xx / pooled.n_rows + ridge, str(options.precondition))
        moments = [white.whitened(one, options.ridge) for one in ordered]
        both = pool_moments(moments)
        step = options.step
        if step is None:
            step = options.step_factor * both.n_rows / (2.0 * both.operator_norm())
        inner = replace(options, ridge=0.0, precondition=None)
        if options.start is None:
            messages = [client_side.start_message(one) for one in moments]
            start = server.require_tangent_space(server.spectral_start(messages, weights, step, options.rank))
        else:
            given = _start([], ordered, weights, step, inner, None, Ledger())
            start = white.to_whitened(given)
    names = [str(i) for i in range(len(moments))]
    summaries = [ClientSummary(one.n_rows, 0.0) for one in moments]
    fit = _rounds(start, step, names, moments, summaries, weights, curvatures, inner, None, Ledger(), progress)
    return replace(fit, point=white.from_whitened(fit.point).sign_fixed())


def _record_all(ledger: Ledger, names: list[str], what: str, n_numbers: int) -> None:
    for name in names:
        ledger.record(name, what, n_numbers=n_numbers, sensitivity=None, sigma=0.0)


def _start(
    names: list[str],
    ordered: list[LaggedMoments],
    weights: FloatArray,
    step: float,
    options: SharedOptions,
    privacy: Privacy | None,
    ledger: Ledger,
) -> FixedRank:
    shape = ordered[0].yx.shape
    if options.start is None:
        if privacy is not None:
            _record_all(ledger, names, "start", shape[0] * shape[1])
        messages = [client_side.start_message(one) for one in ordered]
        start = server.spectral_start(messages, weights, step, options.rank)
    else:
        start = FixedRank.from_dense(server.given_start(options.start, *shape), options.rank)
    return server.require_tangent_space(start)


def _noise(
    privacy: Privacy, names: list[str], ordered: list[LaggedMoments], random_state: int | None
) -> list[_ClientNoise]:
    noise = []
    for name, one in zip(names, ordered, strict=True):
        kappa = privacy.kappa
        if isinstance(kappa, str):
            kappa = kappa_from_scale(float(np.trace(one.xx)), float(np.trace(one.yy)), one.n_rows, one.order)
        generator = noise_generator(privacy, random_state, name)
        noise.append(_ClientNoise(float(kappa), privacy.round_sigma(float(kappa)), generator))
    return noise


def _rounds(
    start: FixedRank,
    step: float,
    names: list[str],
    ordered: list[LaggedMoments],
    summaries: list[ClientSummary],
    weights: FloatArray,
    curvatures: dict[str, float],
    options: SharedOptions,
    noise: list[_ClientNoise] | None,
    ledger: Ledger,
    progress: Progress | None,
) -> SharedFit:
    component = LowRankComponent(step, options.ridge)
    state = LowRankState(start)
    planned = options.n_rounds
    if planned is None:
        planned = server.default_rounds(sum(summary.n_rows for summary in summaries))
    length = float(np.linalg.norm(start.s))
    losses: list[float] = []
    changes: list[float] = []
    with kernels.one_blas_thread():
        for number in range(1, planned + 1):
            messages = []
            for i, (name, one) in enumerate(zip(names, ordered, strict=True)):
                if noise is None:
                    messages.append(client_side.pair_message(component, one, state))
                    continue
                level = noise[i]
                ledger.record(
                    name, f"round {number} gradient pair", n_numbers=state.point.rank * sum(state.point.shape),
                    sensitivity=level.kappa, sigma=level.sigma,
                )  # fmt: skip
                messages.append(client_side.pair_message(component, one, state, level.sigma, level.generator))
            try:
                state, loss = server.aggregate_round(component, state, messages, weights)
            except ArithmeticError as error:
                raise _diverged(number, step) from error
            if not float(np.linalg.norm(state.point.s)) <= _LARGEST_GROWTH * max(1.0, length):
                raise _diverged(number, step)
            changes.append(state.change)
            if loss is not None:
                losses.append(loss)
            if progress is not None:
                progress(number, planned)
            if noise is None and state.change <= options.tol:
                break
        return _finish(
            state.point, state.n_rounds, step, curvatures, ordered, weights, options, losses, changes,
            private=noise is not None,
        )  # fmt: skip


def _diverged(number: int, step: float) -> OptionError:
    return OptionError(
        f"Stage I diverged in round {number}: step={step:.6g} is too large for these data (or the noise for the "
        "signal); use step='auto', which is safe without noise, or a smaller number"
    )


def _finish(
    point: FixedRank,
    n_rounds: int,
    step: float | None,
    curvatures: dict[str, float],
    ordered: list[LaggedMoments],
    weights: FloatArray,
    options: SharedOptions,
    losses: list[float],
    changes: list[float],
    private: bool = False,
) -> SharedFit:
    point = point.sign_fixed()
    history = {"change": np.array(changes)}
    if private:
        return SharedFit(point, n_rounds, step, curvatures, history)
    component = LowRankComponent(step or 0.0, options.ridge)
    state = LowRankState(point)
    messages = [client_side.pair_message(component, one, state) for one in ordered]
    gradient = component.total_gradient(state, component.aggregate([m.pair for m in messages], weights))
    losses.append(float(sum(w * m.loss for w, m in zip(weights, messages, strict=True) if m.loss is not None)))
    if options.step is not None and losses[-1] > losses[0]:
        raise _diverged(n_rounds, options.step)
    history["loss"] = np.array(losses)
    return SharedFit(point, n_rounds, step, curvatures, history, gradient.norm())
