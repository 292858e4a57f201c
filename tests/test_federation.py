"""Messages, engine and ledger of Stage I."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import dense_moments, project_dense, stable_series, stage_one, truncate

from fedvar_fast import Privacy, lagged_moments
from fedvar_fast.exceptions import OptionError
from fedvar_fast.federation import client, server
from fedvar_fast.federation.inprocess import SharedOptions, fit_shared
from fedvar_fast.lowrank import FixedRank
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.mechanism import kappa_from_scale, noise_generator
from fedvar_fast.solvers.riemannian import LowRankComponent, LowRankState, exact_reduced_rank

DIM, WIDTH, RANK = 4, 8, 2
NAMES = ("west", "east", "north")
PRIVATE = Privacy(2.0, 1e-5, kappa=0.01, reproducible=True, calibration="paper")


@pytest.fixture(scope="module")
def moments():
    rng = np.random.default_rng(0)
    return {
        name: lagged_moments(stable_series(rng, n, DIM, 2)[0], 2) for name, n in zip(NAMES, (90, 60, 140), strict=True)
    }


def options(**changes):
    return SharedOptions(**({"rank": RANK} | changes))


def weights_of(moments):
    rows = np.array([one.n_rows for one in moments.values()], dtype=float)
    return rows / rows.sum()


def safe_step(moments, ridge=0.0):
    curvatures = [2 * np.linalg.norm(one.xx, 2) / one.n_rows for one in moments.values()]
    return 1.0 / (weights_of(moments) @ curvatures + 2 * ridge)


def sums(moments):
    return [(one.xx, one.yx, one.n_rows) for one in moments.values()]


# -- steps ---------------------------------------------------------------------------------------------------------


def test_client_messages(moments):
    one = moments["west"]
    summary = client.summarize(one)
    assert summary.n_rows == one.n_rows == 88
    assert summary.curvature == pytest.approx(2 * np.linalg.norm(one.xx, 2) / 88, rel=1e-12)
    np.testing.assert_allclose(client.start_message(one).yx_mean, one.yx / 88)
    full = client.moments_message(one)
    np.testing.assert_allclose(full.xx_mean, one.xx / 88)
    np.testing.assert_allclose(full.yx_mean, one.yx / 88)


def test_a_pair_message_has_r_times_d_plus_pd_numbers(moments):
    point = FixedRank.from_dense(np.random.default_rng(1).standard_normal((DIM, WIDTH)), RANK)
    message = client.pair_message(LowRankComponent(0.1), moments["west"], LowRankState(point))
    assert message.pair.n_numbers == RANK * (DIM + WIDTH)
    assert message.pair.row_part.shape == (RANK, WIDTH) and message.pair.column_part.shape == (DIM, RANK)
    one = moments["west"]
    gradient = 2 / one.n_rows * (point.dense() @ one.xx - one.yx)
    np.testing.assert_allclose(point.embed(message.pair), project_dense(point.dense(), gradient, RANK), atol=1e-12)
    assert message.loss == pytest.approx(one.loss(point.dense()))


def test_a_private_pair_message_sends_no_loss_and_stays_tangent(moments):
    point = FixedRank.from_dense(np.random.default_rng(2).standard_normal((DIM, WIDTH)), RANK)
    state, component = LowRankState(point), LowRankComponent(0.1)
    clean = client.pair_message(component, moments["west"], state)
    draws_r, draws_b = [], []
    for index in range(2000):
        generator = noise_generator(PRIVATE, 7, "west", index)
        noisy = client.pair_message(component, moments["west"], state, 0.5, generator)
        assert noisy.loss is None
        noise_b = noisy.pair.column_part - clean.pair.column_part
        np.testing.assert_allclose(point.u.T @ noise_b, 0.0, atol=1e-13)
        draws_r.append(noisy.pair.row_part - clean.pair.row_part)
        draws_b.append(noise_b)
    # P_T(W) has variance sigma^2 in each of its r (d + pd - r) dimensions.
    assert np.var(draws_r) == pytest.approx(0.25, rel=0.05)
    assert np.mean(np.sum(np.square(draws_b), axis=(1, 2))) == pytest.approx(0.25 * RANK * (DIM - RANK), rel=0.05)
    with pytest.raises(OptionError, match="sigma"):
        client.pair_message(component, moments["west"], state, 0.0, noise_generator(PRIVATE, 7, "west"))


def test_server_steps(moments):
    summaries = [client.summarize(one) for one in moments.values()]
    weights = server.client_weights(summaries)
    np.testing.assert_allclose(weights, weights_of(moments))
    for ridge in (0.0, 0.7):
        assert server.safe_step(summaries, weights, ridge) == pytest.approx(safe_step(moments, ridge), rel=1e-12)
    assert [server.default_rounds(n) for n in (1, 2, 1000)] == [1, 7, 70]
    start = server.spectral_start([client.start_message(one) for one in moments.values()], weights, 0.1, RANK)
    mean = sum(one.yx for one in moments.values()) / sum(one.n_rows for one in moments.values())
    np.testing.assert_allclose(start.dense(), truncate(0.2 * mean, RANK), atol=1e-13)


# -- the engine without noise --------------------------------------------------------------------------------------


def test_the_engine_makes_the_papers_rounds(moments):
    step = safe_step(moments)
    fit = fit_shared(moments, options(n_rounds=25))
    mean = sum(one.yx for one in moments.values()) / sum(one.n_rows for one in moments.values())
    want, losses = stage_one(sums(moments), weights_of(moments), 2 * step * mean, RANK, step, 25)
    np.testing.assert_allclose(fit.point.dense(), want, atol=1e-10)
    assert fit.step == pytest.approx(step, rel=1e-12) and fit.n_rounds == 25
    energy = sum(np.trace(one.yy) for one in moments.values()) / sum(one.n_rows for one in moments.values())
    assert len(fit.history["loss"]) == 26 and len(fit.history["change"]) == 25
    np.testing.assert_allclose(fit.history["loss"][:25], np.array(losses) + energy, rtol=1e-11)
    pooled = sum(w * one.loss(want) for w, one in zip(weights_of(moments), moments.values(), strict=True))
    assert fit.history["loss"][-1] == pytest.approx(pooled, rel=1e-10)
    gradient = sum(w * 2 / t * (want @ s - c) for w, (s, c, t) in zip(weights_of(moments), sums(moments), strict=True))
    assert fit.gradient_norm == pytest.approx(np.linalg.norm(project_dense(want, gradient, RANK)), abs=1e-9)
    for name, one in moments.items():
        assert fit.curvatures[name] == pytest.approx(2 * np.linalg.norm(one.xx, 2) / one.n_rows, rel=1e-12)


@pytest.mark.parametrize("solver", ["rounds", "exact"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_pooled_is_federated(moments, solver, ridge):
    changes = {"solver": solver, "ridge": ridge, "step": 0.05, "n_rounds": 30}
    apart = fit_shared(moments, options(**changes))
    merged = sum(list(moments.values())[1:], moments["west"])
    together = fit_shared({"everyone": merged}, options(**changes))
    np.testing.assert_allclose(apart.point.dense(), together.point.dense(), atol=1e-11)
    np.testing.assert_allclose(apart.history["loss"], together.history["loss"], rtol=1e-11)
    assert apart.gradient_norm == pytest.approx(together.gradient_norm, abs=1e-11)


def test_clients_around_their_own_centres_keep_them():
    # Each client's gradient is that of its own centred rows; pooling may not move anybody's centre.
    rng = np.random.default_rng(3)
    series = {name: stable_series(rng, 80, DIM, 2)[0] + shift for name, shift in zip(NAMES, (0, 5, -9), strict=True)}
    own = {name: lagged_moments(y, 2, center=y.mean(axis=0)) for name, y in series.items()}
    moved = {name: lagged_moments(y - y.mean(axis=0), 2) for name, y in series.items()}
    got, want = (fit_shared(one, options(n_rounds=20)).point.dense() for one in (own, moved))
    np.testing.assert_allclose(got, want, atol=1e-9)


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_the_order_of_clients_changes_no_bit(moments, privacy):
    backwards = dict(reversed(moments.items()))
    first, second = (
        fit_shared(one, options(n_rounds=12), privacy, Ledger(), random_state=3) for one in (moments, backwards)
    )
    np.testing.assert_array_equal(first.point.dense(), second.point.dense())
    np.testing.assert_array_equal(first.history["change"], second.history["change"])


def test_exact_is_the_closed_form_and_long_rounds_meet_it(moments):
    exact = fit_shared(moments, options(solver="exact"))
    total = sum(list(moments.values())[1:], moments["west"])
    want = exact_reduced_rank(total.xx / total.n_rows, total.yx / total.n_rows, RANK).dense()
    np.testing.assert_allclose(exact.point.dense(), want, atol=1e-11)
    assert exact.n_rounds == 0 and exact.step is None and exact.gradient_norm < 1e-10
    assert len(exact.history["loss"]) == 1
    rounds = fit_shared(moments, options(n_rounds=3000))
    np.testing.assert_allclose(rounds.point.dense(), want, atol=1e-8)


def test_default_rounds_and_early_stop(moments):
    assert fit_shared(moments, options()).n_rounds == server.default_rounds(sum(m.n_rows for m in moments.values()))
    early = fit_shared(moments, options(n_rounds=3000, tol=1e-6))
    assert early.n_rounds < 3000 and early.history["change"][-1] <= 1e-6 < early.history["change"][-2]


def test_progress_is_told(moments):
    calls = []
    fit_shared(moments, options(n_rounds=3), progress=lambda done, planned: calls.append((done, planned)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_rank_zero_sends_nothing(moments):
    ledger = Ledger()
    fit = fit_shared(moments, options(rank=0), PRIVATE, ledger, random_state=1)
    assert fit.n_rounds == 0 and len(ledger) == 0
    np.testing.assert_array_equal(fit.point.dense(), np.zeros((DIM, WIDTH)))


def test_refusals(moments):
    zero = {"a": lagged_moments(np.zeros((20, DIM)), 2)}
    with pytest.raises(OptionError, match="nothing to learn"):
        fit_shared(zero, options())
    for start in (np.zeros((DIM, WIDTH)), np.zeros((DIM, WIDTH)).tolist()):
        with pytest.raises(OptionError, match="zero matrix"):
            fit_shared(moments, options(start=start))
    with pytest.raises(OptionError, match="zero matrix"):
        fit_shared(zero, options(step=0.1))
    for start in (np.ones((WIDTH, DIM)), np.ones(3), np.full((DIM, WIDTH), np.nan)):
        with pytest.raises(OptionError, match="init must be"):
            fit_shared(moments, options(start=start))
    with pytest.raises(OptionError, match="no noise protects"):
        fit_shared(moments, options(solver="exact"), PRIVATE, Ledger(), random_state=1)
    for rank in (DIM + 1, -1):
        with pytest.raises(OptionError, match="rank"):
            fit_shared(moments, options(rank=rank, n_rounds=1))


# -- the engine with noise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given_step", [False, True])
@pytest.mark.parametrize("given_start", [False, True])
def test_the_ledger_has_every_release_and_no_other(moments, given_step, given_start):
    ledger = Ledger()
    start = np.random.default_rng(4).standard_normal((DIM, WIDTH)) if given_start else None
    step = 0.05 if given_step else None
    fit = fit_shared(moments, options(n_rounds=3, start=start, step=step), PRIVATE, ledger, random_state=1)
    assert set(ledger.clients) == set(NAMES)
    for name in NAMES:
        want = [] if given_step else [("curvature for the step size", 1, None, 0.0)]
        want += [] if given_start else [("start", DIM * WIDTH, None, 0.0)]
        sigma = PRIVATE.round_sigma(0.01)
        want += [(f"round {n} gradient pair", RANK * (DIM + WIDTH), 0.01, sigma) for n in (1, 2, 3)]
        got = [(one.what, one.n_numbers, one.sensitivity, one.sigma) for one in ledger.releases(name)]
        assert got == want
    assert fit.gradient_norm is None and set(fit.history) == {"change"} and fit.n_rounds == 3


def test_an_entry_is_written_before_its_message_leaves(moments, monkeypatch):
    ledger, seen = Ledger(), []
    real = client.pair_message

    def watched(component, one, state, sigma=0.0, generator=None):
        seen.append(len(ledger))
        return real(component, one, state, sigma, generator)

    monkeypatch.setattr(client, "pair_message", watched)
    start = np.eye(DIM, WIDTH)
    fit_shared(moments, options(n_rounds=2, start=start, step=0.1), PRIVATE, ledger, random_state=1)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_engine_noise_is_the_clean_rounds_plus_tangent_noise(moments):
    start = truncate(np.random.default_rng(5).standard_normal((DIM, WIDTH)), RANK)
    changes = {"n_rounds": 1, "start": start, "step": 0.05}
    noisy = fit_shared(moments, options(**changes), PRIVATE, Ledger(), random_state=9).point.dense()
    point = FixedRank.from_dense(start, RANK)
    total = np.zeros((DIM, WIDTH))
    for weight, (name, one) in zip(weights_of(moments), moments.items(), strict=True):
        gradient = 2 / one.n_rows * (start @ one.xx - one.yx)
        generator = noise_generator(PRIVATE, 9, name)
        sigma = PRIVATE.round_sigma(0.01)
        noise_r = sigma * generator.standard_normal((RANK, WIDTH))
        noise_b = sigma * generator.standard_normal((DIM, RANK))
        noise = point.u @ noise_r + (noise_b - point.u @ (point.u.T @ noise_b)) @ point.v.T
        np.testing.assert_allclose(project_dense(start, noise, RANK), noise, atol=1e-12)  # of law P_T(W)
        total += weight * (project_dense(start, gradient, RANK) + noise)
    np.testing.assert_allclose(noisy, truncate(start - 0.05 * total, RANK), atol=1e-10)


def test_reproducible_noise_needs_a_seed_and_repeats(moments):
    fits = [fit_shared(moments, options(n_rounds=3), PRIVATE, Ledger(), random_state=s) for s in (1, 1, 2)]
    np.testing.assert_array_equal(fits[0].point.dense(), fits[1].point.dense())
    assert np.any(fits[0].point.dense() != fits[2].point.dense())
    with pytest.raises(TypeError, match="random_state"):
        fit_shared(moments, options(n_rounds=3), PRIVATE, Ledger())
    fresh = Privacy(2.0, 1e-5, kappa=0.01, calibration="paper")
    one, two = (fit_shared(moments, options(n_rounds=3), fresh, Ledger(), random_state=1) for _ in range(2))
    assert np.any(one.point.dense() != two.point.dense())


def test_kappa_from_data_is_each_clients_own(moments):
    ledger = Ledger()
    fit_shared(
        moments, options(n_rounds=1), Privacy(2.0, 1e-5, reproducible=True, calibration="paper"), ledger, random_state=1
    )
    for name, one in moments.items():
        want = kappa_from_scale(np.trace(one.xx), np.trace(one.yy), one.n_rows, 2)
        assert ledger.releases(name)[-1].sensitivity == pytest.approx(want, rel=1e-12)


def test_dense_moments_oracle_agrees_with_the_messages():
    y = np.random.default_rng(6).standard_normal((30, DIM))
    s, c, *_, t = dense_moments(y, 2)
    np.testing.assert_allclose(client.moments_message(lagged_moments(y, 2)).xx_mean, s / t, atol=1e-12)
    np.testing.assert_allclose(client.start_message(lagged_moments(y, 2)).yx_mean, c / t, atol=1e-12)
