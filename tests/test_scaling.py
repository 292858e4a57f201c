import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedvar_fast.exceptions import ConstantColumnWarning, DataError, OptionError
from fedvar_fast.scaling import Scaling


@pytest.fixture(name="values")
def _values():
    rng = np.random.default_rng(5)
    values = rng.standard_normal((400, 3)) * [1.0, 1e-9, 1e6] + [0.0, 0.0, 1e9]
    values.flags.writeable = False
    return values


def test_mean_and_deviation(values):
    scaling = Scaling.from_values(values)
    np.testing.assert_allclose(scaling.center, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.scale, values.std(axis=0), rtol=1e-14)
    assert not scaling.constant.any()
    scaled = scaling.transform(values)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), 1, rtol=1e-13)
    np.testing.assert_allclose(scaling.inverse(scaled), values, rtol=1e-14, atol=1e-14)


def test_options(values):
    identity = Scaling.from_values(values, center=False, scale=False)
    assert np.array_equal(identity.transform(values), values)
    uncentred = Scaling.from_values(values, center=False)
    assert not uncentred.center.any()
    np.testing.assert_allclose(uncentred.scale, values.std(axis=0), rtol=1e-14)
    unscaled = Scaling.from_values(values, scale=False)
    assert (unscaled.scale == 1).all()


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, st.tuples(st.integers(2, 40), st.integers(1, 3)), elements=st.integers(-50, 50)),
    st.integers(1, 39),
    st.floats(-1e8, 1e8),
    st.booleans(),
)
def test_update_is_a_fit_on_all_rows(values, cut, mean, gaps):
    values = values * 0.1 + mean
    values[0] += 1.0  # varies, however small the rest
    if gaps:
        values[1::3] = np.nan
    first, second = np.split(values, [min(cut, len(values) - 1)])
    with_all = Scaling.from_values(np.vstack([values, values[:1] + 1]))
    updated = Scaling.from_values(np.vstack([values[:1], values[:1] + 1])).update(first[1:]).update(second)
    assert updated.n_rows == with_all.n_rows
    np.testing.assert_allclose(updated.center, with_all.center, rtol=1e-14, atol=1e-13)
    np.testing.assert_allclose(updated.scale, with_all.scale, rtol=1e-11)


def test_large_means_keep_their_digits():
    rng = np.random.default_rng(1)
    # Multiples of 2**-10, so that adding a large mean is exact.
    noise = np.round(rng.standard_normal((50_000, 4)) * 1024) / 1024
    scaling = Scaling.from_values(noise + 2.0**33)
    np.testing.assert_allclose(scaling.scale, noise.std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scaling.center - 2.0**33, noise.mean(axis=0), atol=2e-6)


def test_missing_values_are_left_out(values):
    holed = values.copy()
    holed[::7, 1] = np.nan
    holed[0] = np.nan
    scaling = Scaling.from_values(holed)
    np.testing.assert_allclose(scaling.center, np.nanmean(holed, axis=0), rtol=1e-13)
    np.testing.assert_allclose(scaling.scale, np.nanstd(holed, axis=0), rtol=1e-13)
    assert np.array_equal(np.isnan(scaling.transform(holed)), np.isnan(holed))
    with pytest.raises(DataError, match=r"client 'A': no value at all in column.s. 'y'"):
        Scaling.from_values(np.full((3, 1), np.nan), client="A", columns=["y"])


@pytest.mark.parametrize("constant", [0.1, 0.0, -1e9, 1e-20])
@pytest.mark.parametrize("rounding", [0.0, 1e-16])
def test_constant_columns_are_named_once(constant, rounding):
    noise = np.random.default_rng(2).standard_normal((500, 3))
    values = noise.copy()
    values[:, 1] = constant * (1 + rounding * noise[:, 1])
    values[:, 2] = 7
    with pytest.warns(ConstantColumnWarning, match=r"client 'A': column.s. 'b', 'c' never") as record:
        scaling = Scaling.from_values(values, client="A", columns=["a", "b", "c"], clip=2.0)
    assert len(record) == 1
    assert list(scaling.constant) == [False, True, True]
    assert list(scaling.scale[1:]) == [1, 1]
    assert scaling.center[2] == 7
    # What varies later is not cut back to the constant.
    assert scaling.transform(np.array([[0.0, constant, 9.0]]))[0, 2] == 2


def test_clip_bounds_come_from_the_rows_as_they_are(values):
    wild = values.copy()
    wild[10, 0] = 1e3
    scaling = Scaling.from_values(wild, clip=4.0)
    np.testing.assert_allclose(scaling.upper, wild.mean(axis=0) + 4 * wild.std(axis=0), rtol=1e-14)
    np.testing.assert_allclose(scaling.transform(wild)[10, 0], 4.0, rtol=1e-12)
    np.testing.assert_allclose(scaling.transform(wild)[:10, 0], ((wild - scaling.center) / scaling.scale)[:10, 0])
    assert np.array_equal(scaling.update(wild * 3).upper, scaling.upper)
    for clip in (0, -1, float("nan")):
        with pytest.raises(OptionError, match="clip"):
            Scaling.from_values(values, clip=clip)


def test_given_numbers_do_not_depend_on_data(values):
    scaling = Scaling.given([0, 0, 1e9], [1, 1e-9, 1e6], lower=[-1, -1, 0], upper=[1, 1, 2e9])
    updated = scaling.update(values)
    assert np.array_equal(updated.center, scaling.center)
    assert np.array_equal(updated.scale, scaling.scale)
    assert updated.transform(values)[:, 0].max() == 1


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (([0.0], [0.0]), {}),
        (([0.0], [-1.0]), {}),
        (([np.nan], [1.0]), {}),
        (([0.0, 0.0], [1.0]), {}),
        ((0.0, [1.0]), {}),
        (([0.0], [1.0]), {"lower": [0.0]}),
        (([0.0], [1.0]), {"lower": [1.0], "upper": [0.0]}),
    ],
)
def test_given_numbers_are_checked(arguments, options):
    with pytest.raises(OptionError):
        Scaling.given(*arguments, **options)


@pytest.mark.parametrize("clip", [None, 3.0])
def test_arrays_round_trip(values, clip):
    scaling = Scaling.from_values(values, clip=clip, center=False)
    again = Scaling.from_arrays(scaling.to_arrays())
    assert np.array_equal(again.transform(values), scaling.transform(values))
    assert again.n_rows == scaling.n_rows
    assert np.array_equal(again.update(values * 2).scale, scaling.update(values * 2).scale)
    public = Scaling.given([0.0], [2.0])
    assert np.array_equal(Scaling.from_arrays(public.to_arrays()).update(np.ones((2, 1))).scale, [2.0])


def test_results_are_read_only(values):
    scaling = Scaling.from_values(values, clip=1.0)
    for array in (scaling.center, scaling.scale, scaling.lower, scaling.upper):
        assert not array.flags.writeable


def test_long_series_need_little_memory():
    values = np.random.default_rng(0).standard_normal((100_000, 50))
    tracemalloc.start()
    Scaling.from_values(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 < values.nbytes
