from __future__ import annotations

import io
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

import fedvar_fast as fv
from fedvar_fast import plot
from fedvar_fast.estimators.local import LassoVAR, LocalVAR
from fedvar_fast.exceptions import DataError, OptionError


@pytest.fixture(scope="module")
def panel() -> fv.Panel:
    return fv.simulate_panel(3, 4, 2, 60, 1, nonzeros_per_row=1, random_state=2)[0]


@pytest.fixture(scope="module")
def model(panel: fv.Panel) -> fv.FedVAR:
    return fv.FedVAR(2, 1, l1_penalty=0.05).fit(panel)


def images(figure) -> dict[str, object]:
    """Title and image of every heatmap."""
    return {ax.get_title(): ax.images[0] for ax in figure.axes if ax.images and ax.get_visible()}


def drawn(figure) -> None:
    """Draw it: a layout that does not fit, or a letter that is not there, warns, and so fails."""
    figure.savefig(io.BytesIO(), format="png", dpi=50)


# -- coefficients --------------------------------------------------------------------------------------------


def test_coefficients_are_those_of_the_model_on_one_symmetric_scale(model):
    figure = plot.coefficients(model)
    shown = images(figure)
    assert list(shown) == ["$A_0$, shared", *(rf"$\Delta$, {name}" for name in model.clients_)]
    np.testing.assert_array_equal(shown["$A_0$, shared"].get_array(), model.A0_)
    for name in model.clients_:
        np.testing.assert_array_equal(shown[rf"$\Delta$, {name}"].get_array(), model.deltas_[name])
    largest = max(np.abs(part).max() for part in (model.A0_, *model.deltas_.values()))
    assert {image.get_clim() for image in shown.values()} == {(-largest, largest)}
    drawn(figure)


def test_columns_are_grouped_by_lag_and_named(model, panel):
    figure = plot.coefficients(model, ["client_2"], shared=False)
    assert list(images(figure)) == [r"$\Delta$, client_2"]
    ax = figure.axes[0]
    drawn(figure)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(panel.columns)
    assert [label.get_text() for label in ax.get_xticklabels()] == list(panel.columns) * 2
    assert [label.get_text() for label in ax.child_axes[0].get_xticklabels()] == ["lag 1", "lag 2"]
    assert [line.get_xdata()[0] for line in ax.lines] == [3.5]


def test_low_rank_and_sparse_parts_side_by_side(panel):
    local = LocalVAR(2, nuclear_penalty=0.3, l1_penalty=0.1).fit(panel)
    shown = images(plot.coefficients(local, ["client_1"]))
    assert list(shown) == ["client_1, low-rank", "client_1, sparse"]
    np.testing.assert_array_equal(shown["client_1, low-rank"].get_array(), local.low_rank_["client_1"])
    np.testing.assert_array_equal(shown["client_1, sparse"].get_array(), local.sparse_["client_1"])


def test_any_other_model_shows_its_coefficients(panel):
    class Plain(fv.FedVAR):
        """Without parts."""

    other = Plain(1, 0, l1_penalty=0.1).fit(panel)
    coef = other.coef_["client_1"]
    del other.A0_, other.deltas_
    np.testing.assert_array_equal(images(plot.coefficients(other))["client_1"].get_array(), coef)


def test_zero_coefficients_and_one_variable_can_be_drawn():
    values = np.random.default_rng(0).standard_normal((2, 40, 1))
    zero = LassoVAR(1, 100.0).fit({"$a$_b": values[0], "c": values[1]})
    figure = plot.coefficients(zero)
    drawn(figure)
    assert all(np.isfinite(image.get_clim()).all() for image in images(figure).values())


def test_fifty_variables_keep_names_that_can_be_read():
    values = np.random.default_rng(0).standard_normal((1, 80, 50))
    fitted = fv.FedVAR(4, 1, l1_penalty=0.5).fit({"a": values[0]})
    figure = plot.coefficients(fitted)
    drawn(figure)
    width, height = figure.get_size_inches()
    assert width <= 16 and height <= 25
    ax = figure.axes[0]
    sizes = [label.get_fontsize() for label in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    assert min(sizes) >= 5
    # Thinned out where all would not fit, and then each at its own column.
    for label in ax.get_xticklabels():
        assert label.get_text() == f"y{round(label.get_position()[0]) % 50 + 1}"


def test_only_the_first_six_clients_of_many_by_default():
    values = np.random.default_rng(0).standard_normal((9, 30, 2))
    fitted = fv.FedVAR(1, 1, l1_penalty=0.1).fit({f"c{i}": rows for i, rows in enumerate(values)})
    assert len(images(plot.coefficients(fitted))) == 1 + 6
    assert len(images(plot.coefficients(fitted, fitted.clients_))) == 1 + 9


# -- convergence ---------------------------------------------------------------------------------------------


def test_convergence_shows_the_history(model):
    figure = plot.convergence(model)
    loss, change = figure.axes
    np.testing.assert_array_equal(loss.lines[0].get_ydata(), model.history_["loss"])
    np.testing.assert_array_equal(change.lines[0].get_ydata(), model.history_["change"])
    assert loss.lines[0].get_xdata()[0] == 0 and change.lines[0].get_xdata()[0] == 1
    assert loss.get_yscale() == change.get_yscale() == "log"
    drawn(figure)


def test_convergence_under_privacy_has_no_loss(panel):
    private = fv.FedVAR(2, 1, l1_penalty=0.1, privacy=fv.Privacy(2, 1e-5, calibration="paper")).fit(panel)
    assert [ax.get_title() for ax in plot.convergence(private).axes] == ["change of the iterate"]


def test_an_exact_zero_leaves_a_gap_and_no_rounds_are_an_error(panel, model):
    stopped = fv.FedVAR(2, 1, l1_penalty=0.1).fit(panel)
    stopped.history_ = {"loss": [2.0, 1.0], "change": [0.0]}
    figure = plot.convergence(stopped)
    assert math.isnan(figure.axes[1].lines[0].get_ydata()[0])
    drawn(figure)
    with pytest.raises(OptionError, match="no rounds"):
        plot.convergence(LassoVAR(1, 0.1).fit(panel))


# -- forecasts -----------------------------------------------------------------------------------------------


def lines(ax) -> dict[str, np.ndarray]:
    return {line.get_label(): np.asarray(line.get_ydata()) for line in ax.lines}


def test_a_fan_chart_has_means_bands_and_the_past(model, panel):
    figure = plot.forecast(model, 5, clients=["client_3"], variables=["y2", "y4"], level=[50, 90], history=panel)
    means = model.forecast_values(5)["client_3"]
    frame = model.forecast(5, [50, 90])
    for ax, variable, at in zip(figure.axes, ("y2", "y4"), (1, 3), strict=True):
        np.testing.assert_array_equal(lines(ax)["forecast"], means[:, at])
        np.testing.assert_array_equal(lines(ax)["observed"], panel["client_3"].values[-24:, at])
        bands = dict(zip([band.get_label() for band in ax.collections], ax.collections, strict=True))
        assert list(bands) == ["90 %", "50 %"]
        for level in (50, 90):
            rows = frame[(frame["client"] == "client_3") & (frame["variable"] == variable) & (frame["level"] == level)]
            points = bands[f"{level} %"].get_paths()[0].vertices
            assert points[:, 1].max() == pytest.approx(rows["upper"].max(), rel=1e-12)
            assert points[:, 1].min() == pytest.approx(rows["lower"].min(), rel=1e-12)
    assert figure.axes[0].get_title() == "client_3" and figure.axes[1].get_ylabel() == "y4"
    drawn(figure)


def test_times_are_in_the_users_own_form(model, panel):
    figure = plot.forecast(model, 3, clients=["client_1"], variables=["y1"], history=panel)
    drawn(figure)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    following = model.forecast(3)["date"].astype(str).tolist()
    assert labels[-1] == following[2] and len(labels) <= 6


def test_the_sort_of_levels_does_not_matter(model):
    one, other = (plot.forecast(model, 2, level=level).axes[0] for level in ([95, 50], [50, 95]))
    for a, b in zip(one.collections, other.collections, strict=True):
        assert a.get_label() == b.get_label()
        np.testing.assert_array_equal(a.get_paths()[0].vertices, b.get_paths()[0].vertices)


def test_one_step_without_history_and_periods():
    frame = pd.DataFrame(
        np.random.default_rng(0).standard_normal((40, 2)),
        columns=["a", "b"],
        index=pd.period_range("2000Q1", periods=40, freq="Q", name="when"),
    )
    fitted = fv.FedVAR(1, 1, l1_penalty=0.1).fit({"x": frame})
    for history in (None, {"x": frame}):
        figure = plot.forecast(fitted, 1, level=90, history=history)
        drawn(figure)
        assert figure.axes[-1].get_xticklabels()[-1].get_text() == "2010Q1"


def test_the_history_must_end_where_the_forecasts_begin(model, panel):
    with pytest.raises(DataError, match="client 'client_1': history ends before"):
        plot.forecast(model, 2, history=panel.head(50))


# -- what all share ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [plot.coefficients, lambda m, c: plot.forecast(m, 1, clients=c)])
def test_unknown_clients(model, draw):
    with pytest.raises(DataError, match="no client 'nobody'"):
        draw(model, ["nobody"])


def test_unknown_variables_wrong_steps_and_nothing_to_draw(model):
    with pytest.raises(DataError, match="no variable 'gdp'"):
        plot.forecast(model, 1, variables=["gdp"])
    with pytest.raises(OptionError, match="steps=0"):
        plot.forecast(model, 0)
    with pytest.raises(OptionError, match="level=120"):
        plot.forecast(model, 1, level=120)
    with pytest.raises(OptionError, match="nothing to draw"):
        plot.forecast(model, 1, clients=[])
    with pytest.raises(OptionError, match="nothing to draw"):
        plot.coefficients(model, [], shared=False)


def test_without_matplotlib_the_error_says_how_to_get_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (plot.coefficients, plot.convergence, lambda m: plot.forecast(m, 1)):
        with pytest.raises(OptionError, match=r"pip install 'fedvar_fast\[plot\]'"):
            draw(model)


def test_pyplot_is_never_loaded():
    code = (
        "import sys, numpy as np, fedvar_fast as fv\nfrom fedvar_fast import plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "m = fv.FedVAR(1, 1, l1_penalty=0.1).fit({'a': np.random.default_rng(0).standard_normal((30, 2))})\n"
        "plot.coefficients(m); plot.convergence(m); plot.forecast(m, 2, level=90)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
