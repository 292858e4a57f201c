"""The accountant against published values, high precision, an independent accountant, and itself."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvar_fast import privacy
from fedvar_fast.exceptions import OptionError, OptionTypeError
from fedvar_fast.privacy.accounting import (
    classical_sigma,
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)


def test_known_noise_multiplier():
    assert privacy.noise_multiplier(2.0, 1e-5, 100) == pytest.approx(19.938124456, abs=1e-8)
    assert gaussian_mu(2.0, 1e-5) == pytest.approx(0.50155169, abs=5e-9)


@pytest.mark.parametrize(("total", "expected"), [(0.5, 70.318), (1, 37.306), (4, 10.812), (8, 6.002)])
def test_known_noise_multipliers_to_the_printed_digits(total, expected):
    assert round(privacy.noise_multiplier(total, 1e-5, 100), 3) == expected


def test_known_mixed_schedule():
    mu = compose_mu([1 / 10] * 50 + [1 / 20] * 50)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(3.3414095, abs=5e-8)


def test_known_classical_sigma_and_what_it_composes_to():
    sigma = classical_sigma(2.0, 1e-5)
    assert sigma == pytest.approx(2.4224, abs=5e-5)
    assert privacy.epsilon(sigma, 1e-5, 100) == pytest.approx(25.44, abs=5e-3)


def _mpmath_delta(mp, eps, mu):
    # Enough digits for the cancellation: of the order of exp(eps) in one factor, mu in the difference.
    digits = 60 + int(abs(math.log10(mu))) + int((eps / mu + mu / 2) ** 2 / 2)
    with mp.workdps(digits):
        e, m = mp.mpf(eps), mp.mpf(mu)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def _tail_points():
    for mu in (1e-150, 1e-8, 1e-3, 0.3, 0.9999, 1.0001, 3.0, 20.0):
        for x in (0.0, 1e-9, 0.1, 1.0, 4.0, 12.0, 30.0):
            yield x * mu, mu  # epsilon/mu = x
            yield mu * (x + mu / 2), mu  # the argument of the first Phi is -x
            yield max(0.0, mu * (mu / 2 - x)), mu  # ... is +x


@pytest.mark.parametrize(("eps", "mu"), sorted(set(_tail_points())))
def test_delta_against_high_precision_in_both_tails(eps, mu):
    mp = pytest.importorskip("mpmath").mp
    expected = _mpmath_delta(mp, eps, mu)
    if expected < 1e-300:
        assert gaussian_delta(eps, mu) < 1.1e-300
    else:
        assert gaussian_delta(eps, mu) == pytest.approx(float(expected), rel=1e-12, abs=0)


def test_delta_of_1e_200():
    mp = pytest.importorskip("mpmath").mp
    mu = gaussian_mu(2.0, 1e-200)
    assert float(_mpmath_delta(mp, 2.0, mu)) == pytest.approx(1e-200, rel=1e-11, abs=0)
    assert gaussian_epsilon(mu, 1e-200) == pytest.approx(2.0, rel=1e-13)


def test_delta_against_the_pld_accountant():
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_mechanism as plm

    for sigma, n_rounds in ((19.938124456, 100), (6.0, 30), (2.4224, 10)):
        loss = plm.GaussianPrivacyLoss(standard_deviation=sigma / math.sqrt(n_rounds))
        for eps in (0.0, 0.3, 2.0, 5.0):
            ours = gaussian_delta(eps, math.sqrt(n_rounds) / sigma)
            assert ours == pytest.approx(loss.get_delta_for_epsilon(eps), rel=1e-9, abs=1e-15)


def test_composition_against_the_pld_accountant():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4)
    accountant.compose(dp.GaussianDpEvent(10.0), 50).compose(dp.GaussianDpEvent(20.0), 50)
    theirs = accountant.get_epsilon(1e-5)
    ours = gaussian_epsilon(compose_mu([0.1] * 50 + [0.05] * 50), 1e-5)
    assert ours <= theirs  # theirs is discretised, rounded up
    assert theirs == pytest.approx(ours, rel=1e-7)


@pytest.mark.parametrize(
    ("eps", "mu", "expected"),
    [
        (0.0, 0.0, 0.0),
        (1.0, 0.0, 0.0),
        (1.0, math.inf, 1.0),
        (math.inf, 3.0, 0.0),
        (1e308, 1e200, 1.0),
        (1.0, 1e-310, 0.0),
        (1e300, 1.0, 0.0),
        (1.0, 1e160, 1.0),
    ],
)
def test_delta_at_the_edges(eps, mu, expected):
    assert gaussian_delta(eps, mu) == expected


def test_inverses_at_the_edges():
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-9, 1e-5) == 0.0
    assert gaussian_epsilon(1e200, 0.1) == math.inf
    assert gaussian_delta(0.0, gaussian_mu(0.0, 1e-5)) == pytest.approx(1e-5, rel=1e-13)
    assert gaussian_mu(1e-300, 1e-5) == pytest.approx(gaussian_mu(0.0, 1e-5), rel=1e-13)
    assert math.isfinite(privacy.noise_multiplier(0.0, 1e-5, 10))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    eps=st.floats(1e-6, 1e4),
    log_delta=st.floats(-650.0, -1e-3),
    n_rounds=st.integers(1, 10_000),
)
def test_round_trips(eps, log_delta, n_rounds):
    delta = math.exp(log_delta)
    multiplier = privacy.noise_multiplier(eps, delta, n_rounds)
    mu = gaussian_mu(eps, delta)
    assert gaussian_delta(eps, mu) == pytest.approx(delta, rel=1e-9, abs=0)
    assert multiplier * mu == pytest.approx(math.sqrt(n_rounds), rel=1e-14)
    # Near delta(0) epsilon is ill-conditioned (a tiny delta step moves it by delta/Phi): compare through
    # delta.
    back = privacy.epsilon(multiplier, delta, n_rounds)
    assert gaussian_delta(back, mu) == pytest.approx(delta, rel=1e-9, abs=0)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(mu=st.floats(1e-6, 1e3), factor=st.floats(1.001, 10.0), delta=st.floats(1e-12, 0.5))
def test_more_mu_costs_more(mu, factor, delta):
    assert gaussian_epsilon(mu * factor, delta) >= gaussian_epsilon(mu, delta)
    assert gaussian_delta(0.5, mu * factor) >= gaussian_delta(0.5, mu)


def test_composition_is_root_sum_of_squares():
    assert compose_mu([3.0, 4.0]) == 5.0
    assert compose_mu([]) == 0.0
    assert compose_mu([0.1, math.inf]) == math.inf
    assert compose_mu([3e-200, 4e-200]) == pytest.approx(5e-200, rel=1e-15)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: privacy.noise_multiplier(-1.0, 1e-5, 10), OptionError),
        (lambda: privacy.noise_multiplier(math.inf, 1e-5, 10), OptionError),
        (lambda: privacy.noise_multiplier(math.nan, 1e-5, 10), OptionError),
        (lambda: privacy.noise_multiplier("2", 1e-5, 10), OptionTypeError),
        (lambda: privacy.noise_multiplier(True, 1e-5, 10), OptionTypeError),
        (lambda: privacy.noise_multiplier(1.0, 0.0, 10), OptionError),
        (lambda: privacy.noise_multiplier(1.0, 1.0, 10), OptionError),
        (lambda: privacy.noise_multiplier(1.0, 1e-5, 0), OptionError),
        (lambda: privacy.noise_multiplier(1.0, 1e-5, 1.5), OptionTypeError),
        (lambda: privacy.epsilon(0.0, 1e-5, 10), OptionError),
        (lambda: privacy.epsilon(math.inf, 1e-5, 10), OptionError),
        (lambda: classical_sigma(0.0, 1e-5), OptionError),
        (lambda: gaussian_delta(-1.0, 1.0), OptionError),
        (lambda: gaussian_delta(1.0, math.nan), OptionError),
        (lambda: compose_mu([1.0, -1.0]), OptionError),
    ],
)
def test_impossible_arguments_are_refused(call, error):
    with pytest.raises(error):
        call()
