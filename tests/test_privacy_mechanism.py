"""Options, noise, ledger and report."""

import json
import math

import numpy as np
import pytest

from fedvar_fast.exceptions import BudgetError, DataError, OptionError, OptionTypeError
from fedvar_fast.privacy import Ledger, Privacy, PrivacyReport
from fedvar_fast.privacy.accounting import gaussian_epsilon, gaussian_mu
from fedvar_fast.privacy.ledger import Release
from fedvar_fast.privacy.mechanism import DEFAULT_SHARES, add_noise, kappa_from_scale, noise_generator, noisy_pair

D, WIDTH, RANK = 4, 5, 2


def _point(seed=0):
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((D, RANK)))[0]
    V = np.linalg.qr(rng.standard_normal((WIDTH, RANK)))[0]
    return U, V


def _projector(U, V):
    """Matrix of ``W -> P_T(W) = UU'W + (I - UU') W VV'`` on row-major ``vec(W)``."""
    left, right = U @ U.T, V @ V.T
    return np.kron(left, np.eye(WIDTH)) + np.kron(np.eye(D) - left, right)


def _worst_z(draws, expected):
    """Largest distance of the sample covariance from ``expected`` (known mean zero), in standard errors."""
    n = len(draws)
    sample = draws.T @ draws / n
    variance = np.outer(np.diag(expected), np.diag(expected)) + expected**2  # Isserlis
    error = np.sqrt(variance / n)
    return np.max(np.abs(sample - expected) / np.maximum(error, 1e-12))


def _draws(pair, U, V, n):
    rng = np.random.default_rng(11)
    out = np.empty((n, D * WIDTH))
    for row in out:
        R, B = pair(rng)
        row[:] = (U @ R + B @ V.T).ravel()
    return out


def test_thin_noise_has_exactly_the_covariance_of_projected_dense_noise():
    # The thin form is linear in its D*RANK + RANK*WIDTH standard normals: read off its matrix M, compare M M'
    # with P P'.
    U, V = _point()

    class Unit:
        def __init__(self, position):
            self.position = position

        def standard_normal(self, shape):
            values = np.zeros(math.prod(shape))
            if 0 <= self.position < values.size:
                values[self.position] = 1.0
            self.position -= values.size
            return values.reshape(shape)

    columns = []
    for position in range(RANK * WIDTH + D * RANK):
        R, B = noisy_pair(np.zeros((RANK, WIDTH)), np.zeros((D, RANK)), U, 3.0, Unit(position))
        columns.append((U @ R + B @ V.T).ravel())
    M = np.array(columns).T
    P = _projector(U, V)
    np.testing.assert_allclose(P @ P, P, atol=1e-14)
    np.testing.assert_allclose(M @ M.T, 9.0 * P @ P.T, atol=1e-13)


def test_drawn_noise_has_the_law_and_the_test_has_teeth():
    U, V = _point()
    sigma, n = 0.7, 20_000
    zeros = np.zeros((RANK, WIDTH)), np.zeros((D, RANK))
    expected = sigma**2 * _projector(U, V)

    def right(rng):
        return noisy_pair(*zeros, U, sigma, rng)

    def without_projection(rng):
        return sigma * rng.standard_normal((RANK, WIDTH)), sigma * rng.standard_normal((D, RANK))

    assert _worst_z(_draws(right, U, V, n), expected) < 5.0
    assert _worst_z(_draws(without_projection, U, V, n), expected) > 20.0


def test_noise_is_added_to_new_arrays_and_stays_in_the_tangent_space():
    U, _ = _point()
    rng = np.random.default_rng(3)
    R = rng.standard_normal((RANK, WIDTH))
    B = rng.standard_normal((D, RANK))
    B -= U @ (U.T @ B)
    for array in (R, B, U):
        array.setflags(write=False)
    noisy_R, noisy_B = noisy_pair(R, B, U, 1e-3, np.random.default_rng(4))
    np.testing.assert_allclose(U.T @ noisy_B, 0.0, atol=1e-15)
    assert 1e-5 < np.abs(noisy_R - R).max() < 1e-2
    assert 1e-5 < np.abs(noisy_B - B).max() < 1e-2


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_a_raw_pair_cannot_pass_for_a_noisy_one(sigma):
    with pytest.raises(OptionError):
        noisy_pair(np.zeros((1, 2)), np.zeros((2, 1)), np.eye(2)[:, :1], sigma, np.random.default_rng())


def test_round_sigma_is_the_papers():
    privacy = Privacy(2.0, 0.1, calibration="paper")
    assert privacy.round_sigma(1.0) == pytest.approx(math.sqrt(2 * math.log(12.5)) / 2, rel=1e-15)
    assert privacy.round_sigma(0.1) == pytest.approx(0.1 * privacy.round_sigma(1.0), rel=1e-15)
    with pytest.raises(OptionError):
        privacy.round_sigma(0.0)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((0.0, 0.1), {}, OptionError),
        ((-1.0, 0.1), {}, OptionError),
        ((math.inf, 0.1), {}, OptionError),
        ((1.0, 0.0), {}, OptionError),
        ((1.0, 1.0), {}, OptionError),
        (("1", 0.1), {}, OptionTypeError),
        ((1.0, 0.1), {"calibration": "round"}, OptionError),
        ((1.0, 0.1), {"unit": "row"}, OptionError),
        ((1.0, 0.1), {"noise": "laplace"}, OptionError),
        ((1.0, 0.1), {"noise": "opendp", "reproducible": True}, OptionError),
        ((1.0, 0.1), {"clip": "median"}, OptionError),
        ((1.0, 0.1), {"clip": 0.0}, OptionError),
        ((1.0, 0.1), {"sensitive": "y1"}, OptionTypeError),
        ((1.0, 0.1), {"sensitive": []}, OptionTypeError),
        ((1.0, 0.1), {"sensitive": ["y1"], "unit": "client"}, OptionError),
        ((1.0, 0.1), {"sensitive": ["y1"], "calibration": "paper"}, OptionError),
        ((1.0, 0.1), {"unit": "client", "calibration": "paper"}, OptionError),
        ((1.0, 0.1), {"bounds": (1.0, 1.0)}, OptionError),
        ((1.0, 0.1), {"bounds": 3.0}, OptionTypeError),
        ((1.0, 0.1), {"bounds": {"y1": (0.0, math.inf)}}, OptionError),
        ((1.0, 0.1), {"shares": {"tax": 1.0}}, OptionError),
        ((1.0, 0.1), {"shares": {"scale": -1.0}}, OptionError),
        ((1.0, 0.1), {"unit": "innovation"}, OptionError),
        ((1.0, 0.1), {"unit": "innovation", "bounds": (-1, 1), "innovation_bound": 1.0}, OptionError),
        (
            (1.0, 0.1),
            {"unit": "innovation", "bounds": (-1, 1), "innovation_bound": 1.0, "stability": (1.0, 1.0)},
            OptionError,
        ),
        ((1.0, 0.1), {"stability": (1.0, 0.5)}, OptionError),
        ((1.0, 0.1), {"kappa": 0.0}, OptionError),
        ((1.0, 0.1), {"kappa": "auto"}, OptionError),
        ((1.0, 0.1), {"kappa": None}, OptionTypeError),
        ((1.0, 0.1), {"reproducible": 1}, OptionTypeError),
    ],
)
def test_impossible_options_are_refused(arguments, options, error):
    with pytest.raises(error):
        Privacy(*arguments, **options)


def test_the_budget_is_split_in_squares():
    privacy = Privacy(2.0, 1e-5, shares={"rounds": 1.0})
    purposes = ("scale", "whitening", "start", "rounds", "clip")
    strength = privacy.mu_by_purpose(purposes)
    assert math.hypot(*strength.values()) == pytest.approx(gaussian_mu(2.0, 1e-5), rel=1e-12)
    assert (strength["rounds"] / strength["scale"]) ** 2 == pytest.approx(1.0 / DEFAULT_SHARES["scale"])
    assert set(privacy.mu_by_purpose(["rounds"])) == {"rounds"}
    assert privacy.mu_by_purpose(["rounds"])["rounds"] == pytest.approx(gaussian_mu(2.0, 1e-5))


def test_bounds_and_sensitive_columns_by_name():
    privacy = Privacy(1.0, 1e-5, bounds={"b": (0, 2), "a": (-1, 1)}, sensitive=["c", "a", "c"])
    low, high = privacy.column_bounds(("a", "b"))
    assert (low.tolist(), high.tolist()) == ([-1.0, 0.0], [1.0, 2.0])
    assert privacy.sensitive_columns(("a", "b", "c")).tolist() == [0, 2]
    with pytest.raises(OptionError, match="'c', which is no column: they are 'a', 'b'"):
        privacy.sensitive_columns(("a", "b"))
    with pytest.raises(OptionError, match="none for column 'd'"):
        privacy.column_bounds(("a", "b", "d"))
    with pytest.raises(OptionError, match="'b', which is no column"):
        privacy.column_bounds(("a",))
    assert Privacy(1.0, 1e-5).column_bounds(("a",)) is None


def test_options_survive_json():
    privacy = Privacy(
        2.0,
        1e-5,
        unit="innovation",
        bounds={"a": (-1, 1)},
        innovation_bound=1,
        stability=(2, 0.5),
        shares={"clip": 0.1},
    )
    again = Privacy(**json.loads(json.dumps(privacy.to_options())))
    assert again.to_options() == privacy.to_options()


def test_noise_has_the_asked_size_and_is_repeatable_only_by_seed():
    values = np.zeros(20_000)
    known = Privacy(1.0, 1e-5, reproducible=True)
    one = add_noise(values, 3.0, known, 1, "a", 1)
    assert np.std(one) == pytest.approx(3.0, rel=0.03)
    np.testing.assert_array_equal(one, add_noise(values, 3.0, known, 1, "a", 1))
    for other in ((2, "a", 1), (1, "b", 1), (1, "a", 2)):
        assert np.abs(one - add_noise(values, 3.0, known, *other)).max() > 0
    fresh = Privacy(1.0, 1e-5)
    assert np.abs(add_noise(values, 3.0, fresh, 1, "a", 1) - add_noise(values, 3.0, fresh, 1, "a", 1)).max() > 0


def test_opendp_draws_gaussians():
    pytest.importorskip("opendp")
    values = np.arange(3000.0).reshape(30, 100)
    noisy = add_noise(values, 2.0, Privacy(1.0, 1e-5, noise="opendp"), None, "a", 1)
    assert noisy.shape == values.shape
    assert np.std(noisy - values) == pytest.approx(2.0, rel=0.1) and abs(np.mean(noisy - values)) < 0.2


def test_kappa_is_the_move_of_a_typical_observation():
    # Rows of constant norm and A = 0: one row contributes exactly (2/T) ||y|| ||x||; p + 1 rows, old out and
    # new in.
    n_rows, order = 50, 3
    x_norm, y_norm = 2.5, 1.5
    one_row = 2.0 / n_rows * x_norm * y_norm
    kappa = kappa_from_scale(n_rows * x_norm**2, n_rows * y_norm**2, n_rows, order)
    assert kappa == pytest.approx(2 * (order + 1) * one_row, rel=1e-14)
    with pytest.raises(DataError, match="kappa"):
        kappa_from_scale(0.0, 0.0, n_rows, order)


def test_reproducible_noise_belongs_to_the_name_and_the_index():
    privacy = Privacy(1.0, 0.1, reproducible=True, calibration="paper")

    def first(seed, client, index=0):
        return noise_generator(privacy, seed, client, index).standard_normal()

    assert first(7, "Ohio") == first(7, "Ohio")
    values = {first(7, "Ohio"), first(8, "Ohio"), first(7, "Iowa"), first(7, "Ohio", 1)}
    assert len(values) == 4
    assert noise_generator(privacy, 7, "Ohio").standard_normal() != np.random.default_rng(7).standard_normal()


def test_reproducible_noise_is_the_same_everywhere():
    # Pinned raw bits (NumPy keeps those of a bit generator fixed): no salted hash, no position, no platform
    # in it.
    rng = noise_generator(Privacy(1.0, 0.1, reproducible=True, calibration="paper"), 7, "Ohio", 2)
    assert rng.bit_generator.random_raw() == 7142544955670469139


def test_private_noise_ignores_the_seed():
    privacy = Privacy(1.0, 0.1, calibration="paper")
    draws = {noise_generator(privacy, 7, "Ohio").standard_normal() for _ in range(5)}
    assert len(draws) == 5


@pytest.mark.parametrize("seed", [None, 1.5, np.random.default_rng(0), True])
def test_reproducible_noise_needs_an_integer(seed):
    with pytest.raises(OptionTypeError, match="random_state"):
        noise_generator(Privacy(1.0, 0.1, reproducible=True, calibration="paper"), seed, "Ohio")


def _ledger():
    ledger = Ledger()
    for client in ("Ohio", "Iowa"):
        ledger.record(client, "step size", n_numbers=1, sensitivity=None, sigma=0.0)
    ledger.record("Iowa", "start", n_numbers=20, sensitivity=None, sigma=0.0, note="local estimate")
    for n in range(4):
        for client, sigma in (("Ohio", 2.0), ("Iowa", 4.0)):
            ledger.record(client, f"round {n} gradient pair", n_numbers=18, sensitivity=1.0, sigma=sigma)
    return ledger


def test_ledger_sums_by_client():
    ledger = _ledger()
    assert ledger.clients == ("Ohio", "Iowa")
    assert len(ledger.releases()) == len(ledger) == 11
    assert len(ledger.releases("Iowa")) == 6
    assert ledger.releases("nobody") == ()
    assert ledger.total_mu("Ohio") == math.inf
    assert ledger.total_epsilon("Ohio", 1e-5) == math.inf
    assert ledger.total_mu("Ohio", with_noise_only=True) == pytest.approx(1.0, rel=1e-15)
    assert ledger.total_mu("Iowa", with_noise_only=True) == pytest.approx(0.5, rel=1e-15)
    assert ledger.total_epsilon("Iowa", 1e-5, with_noise_only=True) == gaussian_epsilon(0.5, 1e-5)


def test_a_release_that_does_not_depend_on_the_data_costs_nothing():
    ledger = Ledger()
    assert ledger.record("a", "number of rows", n_numbers=1, sensitivity=0.0, sigma=0.0).mu == 0.0
    assert ledger.record("a", "noise of unknown worth", n_numbers=1, sensitivity=None, sigma=1.0).mu == math.inf


def test_ledger_survives_json():
    ledger = _ledger()
    text = json.dumps(ledger.to_records(), allow_nan=False)
    assert Ledger.from_records(json.loads(text)).releases() == ledger.releases()
    assert json.loads(text)[0]["mu"] == "inf"


def test_damaged_records_are_refused():
    records = _ledger().to_records()
    with pytest.raises(DataError, match=r"Record 4 .* mu"):
        Ledger.from_records([r | {"mu": 0.1} if i == 3 else r for i, r in enumerate(records)])
    with pytest.raises(DataError, match=r"Record 1 .* lacks sigma"):
        Ledger.from_records([{k: v for k, v in records[0].items() if k != "sigma"}])
    with pytest.raises(DataError, match=r"Record 1 .* lacks unit, relation"):
        Ledger.from_records([{k: v for k, v in records[0].items() if k not in ("unit", "relation")}])
    with pytest.raises(DataError, match="damaged"):
        Ledger.from_records([records[0] | {"sigma": -1.0}])


def test_entries_cannot_be_changed_and_bad_ones_are_not_written():
    ledger = _ledger()
    with pytest.raises(AttributeError):
        ledger.releases()[0].sigma = 1.0
    with pytest.raises(OptionError):
        ledger.record("a", "x", n_numbers=-1, sensitivity=None, sigma=0.0)
    with pytest.raises(OptionTypeError):
        Release(3, "x", 1, None, 0.0)
    with pytest.raises(OptionTypeError, match="unit"):
        ledger.record("a", "x", n_numbers=1, sensitivity=None, sigma=0.0, unit=None)
    assert len(ledger) == 11


def test_the_ledger_says_what_is_protected():
    ledger = Ledger()
    entry = ledger.record("a", "x", n_numbers=1, sensitivity=1.0, sigma=1.0, unit="client", relation="one client more")
    assert (entry.unit, entry.relation) == ("client", "one client more")
    assert Ledger.from_records(ledger.to_records()).releases() == (entry,)


def test_a_spent_budget_stops_the_client_and_no_other():
    ledger = Ledger()
    ledger.limit("a", 1.0)
    for n in range(100):  # 100 releases of mu = 0.1 are mu = 1 up to rounding
        ledger.record("a", f"round {n}", n_numbers=1, sensitivity=0.1, sigma=1.0)
    with pytest.raises(BudgetError, match=r"'a' .* 'one more': it costs mu = 0\.1 .* mu = 1 spent .* limit is 1;"):
        ledger.record("a", "one more", n_numbers=1, sensitivity=0.1, sigma=1.0)
    assert len(ledger) == 100
    ledger.record("a", "number of rows", n_numbers=1, sensitivity=0.0, sigma=0.0)
    ledger.record("b", "round 0", n_numbers=1, sensitivity=9.0, sigma=1.0)
    ledger.limit("a", 1.1)
    ledger.record("a", "one more", n_numbers=1, sensitivity=0.1, sigma=1.0)
    assert len(ledger) == 103


def test_nothing_leaves_without_noise_under_a_limit():
    ledger = Ledger()
    ledger.limit("a", 1e6)
    for sensitivity, sigma in ((1.0, 0.0), (None, 1.0)):
        with pytest.raises(BudgetError, match="mu = inf"):
            ledger.record("a", "start", n_numbers=1, sensitivity=sensitivity, sigma=sigma)
    ledger.limit("a", math.inf)
    ledger.record("a", "start", n_numbers=1, sensitivity=1.0, sigma=0.0)
    ledger.limit("a", 1e6)
    with pytest.raises(BudgetError, match="mu = inf spent"):  # what left before the limit was set counts
        ledger.record("a", "round 0", n_numbers=1, sensitivity=1.0, sigma=1.0)
    assert len(ledger) == 1


@pytest.mark.parametrize(
    ("client", "mu", "error"),
    [("a", -1.0, OptionError), ("a", math.nan, OptionError), ("a", "1", OptionTypeError), (1, 1.0, OptionTypeError)],
)
def test_impossible_limits_are_refused(client, mu, error):
    with pytest.raises(error):
        Ledger().limit(client, mu)


def test_a_retry_sends_the_same_message_and_costs_nothing():
    ledger, drawn = Ledger(), []

    def draw():
        drawn.append(np.random.default_rng(len(drawn)).standard_normal((2, 3)))
        return drawn[-1]

    def send(client="a", what="pair", context=b"point", **options):
        return ledger.send(client, what, context, draw, sensitivity=1.0, sigma=2.0, unit="observation", **options)

    first = send()
    assert ledger.releases() == (Release("a", "pair", 6, 1.0, 2.0, unit="observation"),)
    expected = drawn[0].tobytes()
    first[:] = 0.0
    drawn[0][:] = 0.0
    ledger.limit("a", 0.5)  # spent: only what was sent before may be sent
    assert send().tobytes() == send().tobytes() == expected
    assert len(ledger) == len(drawn) == 1
    with pytest.raises(BudgetError):
        send(context=b"another point")
    assert len(ledger) == len(drawn) == 1, "nothing is drawn that must not leave"
    ledger.limit("a", 5.0)
    for other in ({"context": b"another point"}, {"what": "pai", "context": b"rpoint"}, {"client": "b"}):
        assert send(**other, n_numbers=4).tobytes() != expected
    assert len(ledger) == len(drawn) == 4
    assert ledger.releases()[-1].n_numbers == 4


def test_a_message_that_cannot_be_sent_is_not_written():
    ledger = Ledger()

    def send(drawn, context=b"", **options):
        return ledger.send("a", "x", context, lambda: drawn, **({"sensitivity": 1.0, "sigma": 1.0} | options))

    for drawn in (1.0, [1.0], np.ones(2, np.float32), np.ones(2, ">f8"), None):
        with pytest.raises(OptionTypeError, match="float64"):
            send(drawn)
    with pytest.raises(OptionTypeError, match="bytes"):
        send(np.ones(2), context="text")
    with pytest.raises(OptionError, match="sigma"):
        send(np.ones(2), sigma=-1.0)
    with pytest.raises(ZeroDivisionError):
        ledger.send("a", "x", b"", lambda: np.ones(1 // 0), sensitivity=1.0, sigma=1.0)
    assert len(ledger) == 0


def test_running_totals():
    ledger = _ledger()
    assert [mu for _, mu, _ in ledger.running("Ohio", 1e-5)] == [math.inf] * 5
    ledger = Ledger(release for release in ledger.releases() if release.has_noise)
    running = ledger.running("Ohio", 1e-5)
    assert tuple(release for release, _, _ in running) == ledger.releases("Ohio")
    np.testing.assert_allclose([mu for _, mu, _ in running], 0.5 * np.sqrt([1, 2, 3, 4]), rtol=1e-15)
    assert [value for _, _, value in running] == [gaussian_epsilon(mu, 1e-5) for _, mu, _ in running]
    assert ledger.running("nobody", 1e-5) == []


def test_queries_change_nothing():
    ledger = _ledger()
    before = ledger.to_records()
    ledger.limit("Iowa", 1.0)
    for client in ("Ohio", "Iowa", "nobody"):
        ledger.running(client, 0.1)
        ledger.total_epsilon(client, 0.1)
        ledger.releases(client)
    assert ledger.to_records() == before and ledger.clients == ("Ohio", "Iowa")


def test_report_figures():
    report = PrivacyReport(Privacy(2.0, 1e-5, calibration="paper"), _ledger(), 4)
    ohio, iowa = report.clients["Ohio"], report.clients["Iowa"]
    assert (ohio.kappa, ohio.sigma, ohio.n_rounds, ohio.mu_per_round) == (1.0, 2.0, 4, 0.5)
    assert ohio.total_mu == pytest.approx(1.0, rel=1e-15)
    assert ohio.total_epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-12)
    assert ohio.round_epsilon == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-12)
    assert ohio.without_noise == ("step size",)
    assert iowa.without_noise == ("step size", "start")


def test_report_is_a_snapshot():
    ledger = _ledger()
    report = PrivacyReport(Privacy(2.0, 1e-5, calibration="paper"), ledger, 4)
    ledger.record("Ohio", "more", n_numbers=1, sensitivity=1.0, sigma=0.01)
    assert len(report.ledger) == 11


def test_report_says_what_must_be_said():
    text = str(PrivacyReport(Privacy(2.0, 1e-5, calibration="paper"), _ledger(), 4))
    total = f"{gaussian_epsilon(1.0, 1e-5):.4g}"
    for phrase in (
        f"({total}, 1e-05) for the client protected least (Ohio)",
        "not a proven bound",
        "step size (every client); start (Iowa)",
        "outside of the figures",
        "no finite epsilon",
        "Stage II",
        "column names",
    ):
        assert phrase in text
    assert "NOT PRIVATE" not in text


@pytest.mark.parametrize("switch", [{"reproducible": True}, {}])
def test_reproducible_report_says_not_private(switch):
    privacy = Privacy(2.0, 1e-5, reproducible=not switch, calibration="paper")
    report = PrivacyReport(privacy, _ledger(), 4, **switch)
    assert "NOT PRIVATE: the noise was drawn from a known seed" in report.text()
    assert report.to_dict()["reproducible"] is True


def test_report_survives_json():
    report = PrivacyReport(Privacy(np.float64(2.0), 1e-5, kappa=1, calibration="paper"), _ledger(), 4)
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    again = PrivacyReport.from_dict(values)
    assert again.to_dict() == report.to_dict()
    assert again.text() == report.text()
    with pytest.raises(DataError, match="ledger"):
        PrivacyReport.from_dict({"privacy": values["privacy"], "n_rounds": 4, "reproducible": False})


def test_report_of_unlimited_and_of_no_releases():
    ledger = Ledger()
    assert "No client released anything" in PrivacyReport(Privacy(1.0, 0.1, calibration="paper"), ledger, 0).text()
    ledger.record("a", "round", n_numbers=1, sensitivity=None, sigma=1.0)
    report = PrivacyReport(Privacy(1.0, 0.1, calibration="paper"), ledger, 1)
    assert report.to_dict()["clients"][0]["total_epsilon"] == "inf"
    assert "infinity" in report.text()
