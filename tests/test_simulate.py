"""Simulated panels: the design, the law of the series, the streams; the compiled kernel against its twin."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import solve_discrete_lyapunov

import fedvar_fast
from fedvar_fast.exceptions import OptionError, OptionTypeError
from fedvar_fast.kernels._jit import simulate_var
from fedvar_fast.kernels._reference_jit import simulate_var_reference
from fedvar_fast.simulate import simulate_arrays, simulate_panel

ROOT = Path(fedvar_fast.__file__).parents[1]
SMALL = {"n_clients": 3, "dim": 4, "order": 2, "n_rows": 30, "rank": 1}


def _companion(coef):
    d, width = coef.shape
    return np.vstack([coef, np.eye(width - d, width)])


def _radius(coef):
    return np.abs(np.linalg.eigvals(_companion(coef))).max()


@pytest.mark.parametrize(("T", "d", "p"), [(40, 3, 1), (40, 3, 4), (5, 1, 1), (3, 1, 2), (1, 4, 2), (0, 2, 2)])
@pytest.mark.parametrize("layout", ["C", "F", "readonly"])
def test_kernel_equals_its_twin(T, d, p, layout):
    rng = np.random.default_rng(T * 100 + d * 10 + p)
    arrays = [0.3 * rng.standard_normal((d, p * d)), rng.standard_normal((T, d)), rng.standard_normal((p, d))]
    before = [a.copy() for a in arrays]
    if layout == "F":
        arrays = [np.asfortranarray(a) for a in arrays]
    if layout == "readonly":
        for a in arrays:
            a.setflags(write=False)
    ours = simulate_var(*arrays)
    assert ours.shape == (T, d)
    np.testing.assert_allclose(ours, simulate_var_reference(*arrays), rtol=1e-11, atol=1e-12)
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_twin_is_the_recursion_written_out():
    a1, a2 = np.array([[0.5, 0.1], [0.0, 0.3]]), np.array([[0.2, 0.0], [-0.4, 0.1]])
    initial = np.array([[1.0, 2.0], [3.0, -1.0]])  # oldest first
    e = np.array([[0.1, 0.2], [0.3, 0.4]])
    y1 = a1 @ initial[1] + a2 @ initial[0] + e[0]
    y2 = a1 @ y1 + a2 @ initial[1] + e[1]
    for simulate in (simulate_var, simulate_var_reference):
        np.testing.assert_allclose(simulate(np.hstack([a1, a2]), e, initial), [y1, y2], rtol=1e-14)


def test_importing_the_package_does_not_import_numba():
    code = "import sys, fedvar_fast.simulate; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_kernel_works_where_no_cache_can_be_written(tmp_path):
    # A copy of the module in a folder whose __pycache__ is a plain file, and the user's cache likewise: this
    # stops root too, which permissions do not.
    shutil.copy(ROOT / "fedvar_fast" / "kernels" / "_jit.py", tmp_path / "jit_copy.py")
    (tmp_path / "__pycache__").write_text("")
    (tmp_path / "blocked").write_text("")
    code = (
        "import numpy as np, jit_copy\n"
        "assert type(jit_copy.simulate_var._cache).__name__ == 'NullCache'\n"
        "print(jit_copy.simulate_var(np.eye(1), np.ones((3, 1)), np.zeros((1, 1))).ravel().tolist())"
    )
    blocked = str(tmp_path / "blocked")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    environment |= {"XDG_CACHE_HOME": blocked, "HOME": blocked, "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"LOCALAPPDATA": blocked, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert run.stdout.strip() == "[1.0, 2.0, 3.0]", run.stderr


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_design(order, rank):
    arrays, truth = simulate_arrays(4, 6, order, 20, rank, deviation_ratio=0.2, random_state=1)
    assert list(arrays) == list(truth.coef) == ["client_1", "client_2", "client_3", "client_4"]
    assert truth.A0.shape == (6, 6 * order)
    singular = np.linalg.svd(truth.A0, compute_uv=False)
    assert (singular > 1e-10).sum() == rank
    size = np.linalg.norm(truth.A0) if rank else truth.scale_factor
    for client, delta in truth.deltas.items():
        assert np.linalg.norm(delta) == pytest.approx(0.2 * size, rel=1e-12)
        assert (delta != 0).all()
        np.testing.assert_allclose(truth.coef[client] - delta, truth.A0, atol=1e-15)
    np.testing.assert_array_equal(truth.innovation_cov, np.eye(6))
    assert not truth.A0.flags.writeable


@pytest.mark.parametrize("order", [1, 3])
def test_operator_norm_is_met_by_the_largest_client(order):
    _, truth = simulate_arrays(4, 6, order, 20, 2, stability=0.6, random_state=2)
    norms = [np.linalg.norm(a, 2) for a in truth.coef.values()]
    assert max(norms) == pytest.approx(0.6, rel=1e-12)
    assert max(_radius(a) for a in truth.coef.values()) < 1.0


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("stability", [0.3, 0.9])
@pytest.mark.parametrize("rank", [0, 2])
def test_spectral_radius_is_met_by_the_largest_client(order, stability, rank):
    _, truth = simulate_arrays(
        4, 5, order, 20, rank, stability=stability, stability_measure="spectral_radius", random_state=3
    )
    assert max(_radius(a) for a in truth.coef.values()) == pytest.approx(stability, rel=1e-8)


@pytest.mark.parametrize("order", [1, 2])
def test_sparse_deviations(order):
    _, truth = simulate_arrays(3, 8, order, 20, 2, nonzeros_per_row=3, random_state=4)
    patterns = [delta != 0 for delta in truth.deltas.values()]
    for pattern in patterns:
        assert (pattern.sum(axis=1) == 3).all()
    assert (patterns[0] != patterns[1]).any()


def test_no_deviation_makes_the_clients_equal():
    _, truth = simulate_arrays(2, 4, 1, 20, 2, deviation_ratio=0.0, random_state=5)
    np.testing.assert_array_equal(truth.coef["client_1"], truth.coef["client_2"])


def test_series_have_the_theoretical_autocovariances():
    cov = np.array([[1.0, 0.5, 0.0], [0.5, 2.0, -0.3], [0.0, -0.3, 0.5]])
    arrays, truth = simulate_arrays(
        2, 3, 2, 60_000, 1, deviation_ratio=0.5, stability=0.8, stability_measure="spectral_radius",
        innovation_cov=cov, random_state=6,
    )  # fmt: skip
    for client, y in arrays.items():
        companion = _companion(truth.coef[client])
        noise = np.zeros((6, 6))
        noise[:3, :3] = cov
        state = solve_discrete_lyapunov(companion, noise)
        for lag in (0, 1, 3):
            expected = (np.linalg.matrix_power(companion, lag) @ state)[:3, :3]
            products = np.einsum("ti,tj->tij", y[lag:], y[: len(y) - lag])
            # Standard errors from 60 batches, each far longer than the memory of the series.
            batches = np.array([b.mean(axis=0) for b in np.array_split(products, 60)])
            error = batches.std(axis=0, ddof=1) / np.sqrt(60)
            z = (products.mean(axis=0) - expected) / error
            assert np.abs(z).max() < 5.0
            # Teeth: white noise of the same covariance would be found out.
            white = cov if lag == 0 else np.zeros((3, 3))
            assert np.abs((products.mean(axis=0) - white) / error).max() > 20.0


def test_residuals_are_the_stated_innovations():
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    arrays, truth = simulate_arrays(2, 2, 1, 20_000, 1, innovation_cov=cov, random_state=7)
    residuals = {k: y[1:] - y[:-1] @ truth.coef[k].T for k, y in arrays.items()}
    for e in residuals.values():
        assert np.abs(np.cov(e.T) - cov).max() < 5 * np.sqrt(2 * 4.0 / len(e))
        assert np.abs((e[1:].T @ e[:-1]) / len(e)).max() < 5 * 2.0 / np.sqrt(len(e))
    first, second = residuals.values()
    assert np.abs(first.T @ second / len(first)).max() < 5 * 2.0 / np.sqrt(len(first))


def test_the_sample_starts_in_the_stationary_law():
    spread, theory = [], None
    for seed in range(300):
        arrays, truth = simulate_arrays(
            1, 1, 1, 3, 1, deviation_ratio=0.0, stability=0.95, burn_in=300, random_state=seed
        )
        spread.append(arrays["client_1"][0, 0])
        theory = 1.0 / (1.0 - truth.A0[0, 0] ** 2)
    assert abs(np.mean(np.square(spread)) / theory - 1.0) < 5 * np.sqrt(2 / 300)
    assert theory > 10.0  # so that starting from zero without burn-in (variance 1) would be found out


def test_same_seed_same_data():
    one, truth = simulate_arrays(**SMALL, random_state=8)
    two, _ = simulate_arrays(**SMALL, random_state=8)
    other, _ = simulate_arrays(**SMALL, random_state=9)
    for client in one:
        np.testing.assert_array_equal(one[client], two[client])
        assert (one[client] != other[client]).all()
    assert truth.seed == 8


@pytest.mark.parametrize("state", [None, "generator"])
def test_the_seed_in_the_truth_makes_the_panel_again(state):
    state = np.random.default_rng(1) if state else None
    first, truth = simulate_arrays(**SMALL, random_state=state)
    second, _ = simulate_arrays(**SMALL, random_state=state)
    again, _ = simulate_arrays(**SMALL, random_state=truth.seed)
    np.testing.assert_array_equal(first["client_2"], again["client_2"])
    assert (first["client_2"] != second["client_2"]).all()


def test_the_order_of_the_clients_does_not_matter():
    one, truth = simulate_arrays(**SMALL, clients=["a", "b", "c"], random_state=10)
    two, other = simulate_arrays(**SMALL, clients=["c", "a", "b"], random_state=10)
    assert list(two) == ["c", "a", "b"]
    np.testing.assert_array_equal(truth.A0, other.A0)
    for client in one:
        np.testing.assert_array_equal(one[client], two[client])


def test_another_client_changes_the_others_only_through_the_common_factor():
    few, before = simulate_arrays(2, 4, 1, 30, 1, burn_in=0, random_state=11)
    many, after = simulate_arrays(6, 4, 1, 30, 1, burn_in=0, random_state=11)
    ratio = after.scale_factor / before.scale_factor
    np.testing.assert_allclose(after.A0, ratio * before.A0, rtol=1e-13)
    for client in few:
        np.testing.assert_allclose(after.deltas[client], ratio * before.deltas[client], rtol=1e-13)
        innovations = [y[1:] - y[:-1] @ t.coef[client].T for y, t in ((few[client], before), (many[client], after))]
        np.testing.assert_allclose(*innovations, atol=1e-12)


@pytest.mark.parametrize(
    "n_rows", [[10, 12, 4], np.array([10, 12, 4]), {"client_3": 4, "client_1": 10, "client_2": 12}]
)
def test_own_length_of_each_client(n_rows):
    arrays, _ = simulate_arrays(**SMALL | {"n_rows": n_rows}, random_state=12)
    assert [len(y) for y in arrays.values()] == [10, 12, 4]
    longer, _ = simulate_arrays(**SMALL | {"n_rows": 20}, random_state=12)
    for client, y in arrays.items():
        np.testing.assert_allclose(longer[client][: len(y)], y, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rank": 5}, OptionError),
        ({"rank": -1}, OptionError),
        ({"rank": 1.0}, OptionTypeError),
        ({"order": 0}, OptionError),
        ({"n_clients": 0}, OptionError),
        ({"dim": True}, OptionTypeError),
        ({"n_rows": 3}, OptionError),
        ({"n_rows": [10, 10]}, OptionError),
        ({"n_rows": [10, 10, 3]}, OptionError),
        ({"n_rows": 10.5}, OptionTypeError),
        ({"n_rows": {"client_1": 10}}, OptionError),
        ({"stability": 0.0}, OptionError),
        ({"stability": 1.0}, OptionError),
        ({"stability": "0.5"}, OptionTypeError),
        ({"stability_measure": "norm"}, OptionError),
        ({"deviation_ratio": -0.1}, OptionError),
        ({"deviation_ratio": None}, OptionTypeError),
        ({"rank": 0, "deviation_ratio": 0.0}, OptionError),
        ({"nonzeros_per_row": 0}, OptionError),
        ({"nonzeros_per_row": 9}, OptionError),
        ({"burn_in": -1}, OptionError),
        ({"innovation_cov": np.eye(3)}, OptionError),
        ({"innovation_cov": -np.eye(4)}, OptionError),
        ({"innovation_cov": np.triu(np.ones((4, 4)))}, OptionError),
        ({"clients": ["a", "b", "b"]}, OptionError),
        ({"clients": ["a", "b"]}, OptionError),
        ({"clients": "abc"}, OptionTypeError),
        ({"random_state": -1}, OptionError),
        ({"random_state": "1"}, OptionTypeError),
    ],
)
def test_impossible_options_are_refused(options, error):
    with pytest.raises(error):
        simulate_arrays(**SMALL | options)


def test_a_norm_below_one_with_an_explosive_companion_is_refused():
    # d = 1: |(a, b)| can be below one while the companion radius is above; some seeds hit it, and the fix is
    # offered.
    refused = 0
    for seed in range(40):
        try:
            _, truth = simulate_arrays(1, 1, 2, 10, 1, deviation_ratio=0.0, stability=0.99, random_state=seed)
        except OptionError as error:
            refused += 1
            assert "spectral_radius" in str(error)
        else:
            assert _radius(truth.A0) < 1.0
    assert 0 < refused < 40


def test_panel_holds_the_arrays_with_dates():
    options = SMALL | {"n_rows": [30, 12, 20]}
    panel, _ = simulate_panel(**options, columns=["a", "b", "c", "d"], random_state=13)
    arrays, _ = simulate_arrays(**options, random_state=13)
    assert list(panel.clients) == list(arrays)
    assert list(panel.columns) == ["a", "b", "c", "d"]
    for client, y in arrays.items():
        np.testing.assert_array_equal(panel[client].values, y)
    frame = panel.to_frames()["client_2"]
    months = pd.date_range("2000-01-01", periods=12, freq="MS")
    assert list(frame["date"]) == list(months)


def test_panel_by_default_is_the_papers_and_named():
    panel, truth = simulate_panel(random_state=14)
    assert list(panel.clients) == [f"client_{k}" for k in range(1, 6)]
    assert list(panel.columns) == [f"y{i}" for i in range(1, 51)]
    assert truth.A0.shape == (50, 50)
    assert np.linalg.matrix_rank(truth.A0) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"start": "no date"},
        {"freq": "no frequency"},
        {"columns": ["date", "b", "c", "d"]},
        {"columns": ["a"]},
    ],
)
def test_impossible_names_and_dates_are_refused(options):
    with pytest.raises(OptionError):
        simulate_panel(**SMALL, **options)


def test_long_series_are_numbered_instead_of_dated():
    from fedvar_fast.simulate import _times

    dated, counted = _times(2000, "2000-01-01", "MS"), _times(2001, "2000-01-01", "MS")
    assert dated[0] == pd.Timestamp("2000-01-01") and dated[1] == pd.Timestamp("2000-02-01")
    assert (counted[0], counted[-1]) == (1, 2001)
    panel, _ = simulate_panel(1, 2, 1, 2001, 1, random_state=15)
    assert list(panel.to_frames()["client_1"]["date"]) == list(range(1, 2002))
