"""FedVAR under a total privacy budget: the promise, what leaves, what is refused, and what the noise leaves."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import fedvar_fast as fv
from fedvar_fast._cli_commands import cli
from fedvar_fast.exceptions import BudgetError, DataError, OptionError, PrivacyNoiseWarning
from fedvar_fast.federation.curator import symmetric_from_vector, vector_from_symmetric
from fedvar_fast.kernels import resolve_n_jobs
from fedvar_fast.privacy import Privacy
from fedvar_fast.privacy.accounting import gaussian_delta, gaussian_mu
from fedvar_fast.solvers.riemannian import exact_reduced_rank

DIM, RANK = 6, 2
BOUNDS = (-12.0, 12.0)


@pytest.fixture(scope="module")
def panel():
    return fv.simulate_panel(3, DIM, 1, 3000, RANK, random_state=1)[0]


def private(epsilon=8.0, **options):
    return Privacy(epsilon, 1e-5, **{"bounds": BOUNDS, "reproducible": True} | options)


def model(privacy=None, **options):
    given = {"l1_penalty": 0.05, "random_state": 3, "privacy": privacy or private()} | options
    return fv.FedVAR(
        options.pop("order", 1), given.pop("rank", RANK), **{k: v for k, v in given.items() if k != "order"}
    )


# -- the promise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip": 4.0},
        {"unit": "client"},
        {"unit": "innovation", "innovation_bound": 6.0, "stability": (2.0, 0.8)},
        {"sensitive": ["y1", "y3"]},
        {"shares": {"rounds": 5.0}},
    ],
)
def test_the_whole_transcript_spends_the_budget_and_no_more(panel, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyNoiseWarning)
        fitted = model(private(2.0, **options)).fit(panel)
    report = fitted.privacy_report_
    assert set(report.clients) == set(panel)
    for name, figures in report.clients.items():
        assert figures.total_mu == pytest.approx(gaussian_mu(2.0, 1e-5), rel=1e-9)
        assert figures.total_epsilon == pytest.approx(2.0, rel=1e-7)
        assert gaussian_delta(2.0, figures.total_mu) == pytest.approx(1e-5, rel=1e-6)
        assert figures.without_noise == ()
        for release in report.ledger.releases(name):
            assert release.unit == fitted.privacy.unit and release.relation and release.sigma > 0


def test_what_leaves_is_in_the_ledger_and_a_round_is_r_d_plus_pd_numbers(panel):
    fitted = model(n_rounds=3).fit(panel)
    what = [(one.what, one.n_numbers) for one in fitted.privacy_report_.ledger.releases("client_1")]
    pair, share = RANK * (DIM + DIM), 1
    assert what == [
        ("centre", DIM),
        ("scale", DIM),
        ("second moments of the regressors", DIM * (DIM + 1) // 2),
        ("start", DIM * DIM),
        *[
            (f"round {i} {name}", n)
            for i in (1, 2, 3)
            for name, n in (("gradient pair", pair), ("rows within the clipping norm", share))
        ],
    ]


def test_public_scaling_and_start_and_a_given_norm_leave_the_budget_to_the_rest(panel):
    start = np.random.default_rng(0).standard_normal((DIM, DIM))
    fitted = model(private(bounds=None, clip=5.0), center=False, scale=False, init=start, n_rounds=2).fit(panel)
    releases = fitted.privacy_report_.ledger.releases("client_2")
    assert [one.what.split(" ", 2)[-1] for one in releases][1:] == ["gradient pair"] * 2 and len(releases) == 3
    assert fitted.privacy_report_.clients["client_2"].total_epsilon == pytest.approx(8.0)


def test_only_the_messages_of_a_client_depend_on_its_data(panel):
    """Same noise, other data of one client: nothing that the others sent before they heard of it changes."""
    other = {name: one.values.copy() for name, one in panel.items()}
    other["client_3"] = other["client_3"] * 0.5
    first, second = model().fit(panel), model().fit(other)
    for name in ("client_1", "client_2"):
        np.testing.assert_array_equal(first.center_[name], second.center_[name])
        np.testing.assert_array_equal(first.scale_[name], second.scale_[name])
    assert np.abs(first.A0_ - second.A0_).max() > 0


# -- the answer ----------------------------------------------------------------------------------------------------


def test_with_a_huge_budget_it_is_the_exact_answer(panel):
    fitted = model(private(1e6), n_rounds=12).fit(panel)
    states = [state.standardized() for state in fitted._states.values()]
    n_rows = sum(one.n_rows for one in states)
    xx, yx = (sum(getattr(one, part) for one in states) / n_rows for part in ("xx", "yx"))
    exact = exact_reduced_rank(xx, yx, RANK).dense()
    # Clipping at the median norm and whitening by drawn-in rows leave a small bias; the noise is next to nothing.
    assert np.linalg.norm(fitted.A0_ - exact) < 0.05 * np.linalg.norm(exact)
    assert all(fitted.shared_used_.values()) and fitted.own_low_rank_ == {} and fitted.signal_to_noise_ > 1e3
    wide = model(private(1e6, clip=30.0), n_rounds=12).fit(panel)
    assert np.linalg.norm(wide.A0_ - exact) < 1e-3 * np.linalg.norm(exact)


def test_released_scaling_is_close_to_the_datas(panel):
    fitted = model(private(50.0)).fit(panel)
    for name, one in panel.items():
        np.testing.assert_allclose(fitted.scale_[name], one.values.std(axis=0), rtol=0.05)
        np.testing.assert_allclose(fitted.center_[name], one.values.mean(axis=0), atol=0.1)


def test_a_fit_ruled_by_noise_says_so_and_goes_on_alone():
    short = fv.simulate_panel(2, DIM, 1, 60, RANK, random_state=2)[0]
    with pytest.warns(PrivacyNoiseWarning, match="every client goes on with its own"):
        fitted = model(private(0.1)).fit(short)
    assert not any(fitted.shared_used_.values()) and not fitted.A0_.any()
    clean = fv.FedVAR(1, RANK, l1_penalty=0.05).fit(short)
    for name in short:
        one = clean._states[name].standardized()
        own = exact_reduced_rank(one.xx / one.n_rows, one.yx / one.n_rows, RANK).dense()
        np.testing.assert_allclose(fitted.own_low_rank_[name], own, atol=1e-10)
        np.testing.assert_allclose(fitted.coef_[name], own + fitted.deltas_[name], atol=1e-12)
        np.testing.assert_array_equal(fitted.scale_[name], clean.scale_[name])
    assert "its own low-rank part" in fitted.summary()
    assert np.isfinite(fitted.forecast_values(3)["client_1"]).all()


@pytest.mark.parametrize("kind", ["full", "nystrom", "diagonal"])
def test_every_preconditioner(panel, kind):
    fitted = model(private(1e5, clip=1e3), precondition=kind, n_rounds=15).fit(panel)
    exact = model(private(1e5, clip=1e3), n_rounds=15).fit(panel)
    assert np.linalg.norm(fitted.A0_ - exact.A0_) < 0.05 * np.linalg.norm(exact.A0_)


def test_order_of_clients_threads_and_seed(panel):
    first = model().fit(panel)
    turned = model(n_jobs=1).fit({name: panel[name].values for name in reversed(list(panel))})
    np.testing.assert_array_equal(first.A0_, turned.A0_)
    assert np.abs(first.A0_ - model(random_state=4).fit(panel).A0_).max() > 0
    fresh = private(reproducible=False)
    assert np.abs(model(fresh).fit(panel).A0_ - model(fresh).fit(panel).A0_).max() > 0
    assert resolve_n_jobs(None) >= 1


def test_missing_values_count_as_public_rows(panel):
    holes = {name: one.values.copy() for name, one in panel.items()}
    holes["client_1"][100:110, 2] = np.nan
    fitted = model().fit(fv.as_panel(holes, missing="drop"))
    assert np.isfinite(fitted.A0_).all()
    whole = model().fit(panel).privacy_report_.ledger.releases("client_1")
    for one, other in zip(fitted.privacy_report_.ledger.releases("client_1")[:4], whole, strict=False):
        assert (one.sensitivity, one.sigma) == (other.sensitivity, other.sigma) or one.what.startswith("start")


def test_a_noisy_vote_for_the_rank(panel):
    fitted = model(private(1e4), rank="auto", n_origins=5).fit(panel)
    votes = [one for one in fitted.privacy_report_.ledger.releases("client_1") if one.what == "rank vote"]
    assert len(votes) == 1 and votes[0].sensitivity == pytest.approx(np.sqrt(2))
    assert fitted.rank_ in {vote or 1 for vote in fitted.client_ranks_.values()}


def test_tuned_penalties_stay_at_home(panel):
    fitted = model(l1_penalty="cv", n_origins=5).fit(panel)
    assert set(fitted.tuning_) == set(panel)
    assert len(fitted.privacy_report_.ledger.releases("client_1")) == len(
        model().fit(panel).privacy_report_.ledger.releases("client_1")
    )


def test_files_updates_and_new_clients(panel, tmp_path):
    fitted = model().fit(panel)
    fitted.save(tmp_path / "m")
    again = fv.load(tmp_path / "m")
    np.testing.assert_array_equal(again.A0_, fitted.A0_)
    assert str(again.privacy_report_) == str(fitted.privacy_report_)
    assert again.shared_used_ == fitted.shared_used_ and again.signal_to_noise_ == fitted.signal_to_noise_
    with pytest.raises(OptionError, match="budget of its own"):
        fitted.update({name: one.values[:5] for name, one in panel.items()})
    newcomer = fv.simulate_panel(1, DIM, 1, 200, RANK, random_state=9)[0]["client_1"].values
    fitted.add_client("new", newcomer)
    assert "new" in fitted.coef_ and "new" not in fitted.privacy_report_.clients


def test_an_evaluation_fits_anew_at_every_origin(panel):
    short = {name: one.values[:300] for name, one in panel.items()}
    methods = {"alone": fv.AutoregressionVAR(1), "private": model(private(200.0))}
    table = fv.rolling_evaluation(short, methods, n_origins=3)
    assert table.methods[:2] == ("alone", "private")
    assert np.isfinite(table.squared_errors("private", "client_1")).all()


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"init": "local"}, "init='spectral'"),
        ({"step": "cv"}, "step='auto'"),
        ({"shared_solver": "exact"}, "shared_solver='rounds'"),
        ({"ridge": 0.1}, "use 0"),
        ({"clip": 4.0}, "bounds"),
        ({"privacy": private(bounds=None)}, "center=False and scale=False"),
        ({"init": np.ones((2, 2))}, r"\(6, 6\)"),
        ({"init": np.zeros((DIM, DIM))}, "another init"),
        ({"privacy": private(sensitive=["y9"])}, "'y9', which is no column"),
        ({"privacy": private(bounds={"y1": (0, 1)})}, "none for column 'y2'"),
        ({"rank": DIM + 1}, "above"),
    ],
)
def test_what_would_leave_unprotected_is_refused(panel, options, instead):
    with pytest.raises(OptionError, match=instead):
        model(**options).fit(panel)


def test_a_large_delta_is_warned_of(panel):
    with pytest.warns(PrivacyNoiseWarning, match="not below 1/T"):
        model(Privacy(2.0, 0.01, bounds=BOUNDS, reproducible=True)).fit(panel)


def test_too_short_a_series_is_refused(panel):
    with pytest.raises(DataError, match="rows"):
        model().fit({"a": np.zeros((2, 3))})


# -- ledgers in files ----------------------------------------------------------------------------------------------


def test_a_fit_that_is_run_again_resends_and_another_finds_the_budget_spent(panel, tmp_path):
    privacy = private(ledger=tmp_path, reproducible=False)
    first = model(privacy).fit(panel)
    again = model(privacy).fit(panel)
    np.testing.assert_array_equal(first.A0_, again.A0_)
    assert again.privacy_report_.clients["client_1"].total_epsilon == pytest.approx(8.0)
    with pytest.raises(BudgetError, match="client_1"):
        model(privacy, n_rounds=2).fit(panel)
    with pytest.raises(BudgetError, match="client_1"):
        model(private(ledger=tmp_path, bounds=(-10.0, 10.0))).fit(panel)
    longer = {name: np.vstack([one.values, one.values[-1:]]) for name, one in panel.items()}
    with pytest.raises(DataError, match="other data"):
        model(privacy).fit(longer)


@pytest.mark.filterwarnings("ignore::fedvar_fast.exceptions.PrivacyNoiseWarning")
def test_a_fit_that_the_budget_has_no_room_for_spends_nothing(panel, tmp_path):
    privacy = private(1.0, ledger=tmp_path, reproducible=False)
    model(privacy, n_rounds=3).fit(panel)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BudgetError, match="enough for 0 of its 5 rounds"):
        model(privacy, n_rounds=5).fit(panel)
    with pytest.raises(BudgetError, match=r"enough for [1-4] of its 5 rounds"):
        model(private(1.6, ledger=tmp_path, reproducible=False), n_rounds=5).fit(panel)
    with pytest.raises(OptionError, match="counts for unit='observation'"):
        model(private(1.0, ledger=tmp_path, unit="client")).fit(panel)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    more = model(private(1.5, ledger=tmp_path, reproducible=False), n_rounds=5)
    with pytest.raises(BudgetError):
        more.fit(panel)


@pytest.mark.parametrize(
    ("options", "corrected"),
    [
        ({"rank": DIM + 1}, {"rank": RANK}),
        ({"init": np.ones((2, 2))}, {}),
        ({"init": np.zeros((DIM, DIM))}, {}),
        ({"l1_penalty": {"clinet_1": 0.1}}, {}),
        ({"l1_penalty": "cv", "n_origins": 5000}, {"l1_penalty": "cv", "n_origins": 5}),
        ({"privacy": {"sensitive": ["y9"]}}, {}),
    ],
)
def test_a_mistake_spends_nothing(panel, tmp_path, options, corrected):
    extra = {"ledger": tmp_path, "reproducible": False}
    wrong = {**options, "privacy": private(**extra, **options.get("privacy", {}))}
    with pytest.raises((OptionError, DataError)):
        model(**wrong).fit(panel)
    # The header at the most: no release.
    assert all(len(path.read_text().splitlines()) <= 1 for path in tmp_path.iterdir())
    model(**corrected, privacy=private(**extra)).fit(panel)


def test_another_tuning_of_stage_two_is_the_same_fit(panel, tmp_path):
    privacy = private(ledger=tmp_path, reproducible=False)
    first = model(privacy).fit(panel)
    again = model(privacy, l1_penalty="cv", n_origins=5).fit(panel)
    np.testing.assert_array_equal(first.A0_, again.A0_)


def test_nothing_is_sent_where_nothing_is_shared(panel):
    fitted = model(rank=0).fit(panel)
    assert not fitted.A0_.any() and len(fitted.privacy_report_.ledger) == 0


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_command_line(panel, tmp_path):
    fv.write_panel(panel, tmp_path / "data")
    out = str(tmp_path / "model.fvm")
    words = [
        "fit",
        str(tmp_path / "data"),
        "--order",
        1,
        "--rank",
        2,
        "--l1-penalty",
        0.05,
        "--epsilon",
        2,
        "--delta",
        1e-5,
    ]
    words += ["--unit", "observation", "--bounds", "-12,12", "--out", out]
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "(2, 1e-05)" in result.output or "(epsilon, delta) = (2, 1e-05)" in result.output
    report = CliRunner().invoke(cli, ["report", out, "--privacy"])
    assert report.exit_code == 0 and "Promised: (epsilon, delta) = (2, 1e-05)" in report.output
    assert "round 6 gradient pair" in report.output and "Never leaves the client" in report.output
    shown = json.loads(CliRunner().invoke(cli, ["report", out, "--privacy", "--json"]).output)
    assert shown["privacy_report"]["privacy"]["unit"] == "observation" if "privacy_report" in shown else shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--unit", "client"], "--unit belongs to a private fit"),
        (["--epsilon", "1"], "--epsilon needs --delta"),
        (["--epsilon", "1", "--delta", "1e-5", "--kappa", "1"], "--calibration paper"),
        (["--epsilon", "1", "--delta", "1e-5", "--bounds", "3"], "two numbers"),
        (["--epsilon", "1", "--delta", "1e-5", "--bounds", "0,1", "--bounds", "0,2"], "once"),
        (["--epsilon", "1", "--delta", "1e-5", "--bounds", "y1=0,1"], "none for column"),
        (["--epsilon", "1", "--delta", "1e-5"], "bounds"),
    ],
)
def test_the_command_line_refuses(panel, tmp_path, options, said):
    fv.write_panel(panel, tmp_path / "data")
    words = [
        "fit",
        str(tmp_path / "data"),
        "--rank",
        "2",
        "--l1-penalty",
        "0.1",
        "--out",
        str(tmp_path / "m"),
        *options,
    ]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code != 0 and said in result.output


# -- pieces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5])
def test_symmetric_matrices_as_vectors(size):
    matrix = np.random.default_rng(size).standard_normal((size, size))
    matrix = matrix + matrix.T
    vector = vector_from_symmetric(matrix)
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(matrix))
    np.testing.assert_allclose(symmetric_from_vector(vector), matrix, atol=1e-15)
