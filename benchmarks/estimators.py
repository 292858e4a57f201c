"""asv suites of whole fits."""

from __future__ import annotations

import numpy as np

import fedvar_fast as fv

from . import plain, problems
from .peers import blas, missing, statsmodels
from .suite import with_peak_memory

OPTIONS = {"n_rounds": 50, "local_iter": 100, "l1_penalty": 0.1}


@with_peak_memory
class WholeFit:
    """d = 200, p = 2, K = 5, T_k = 2,000: 50 rounds, then a gap of 1e-6."""

    timeout = 300
    number = 1
    repeat = 3

    def setup(self):
        self.panel = problems.panel()

    def time_ours(self):
        return fv.FedVAR(2, 3, local_tol=1e-6, **OPTIONS).fit(self.panel)

    def time_moments_alone(self):
        for y in self.panel.values():
            fv.lagged_moments(y, 2)

    def track_largest_gap(self):
        return max(self.time_ours().gap_.values())


@with_peak_memory
class PlainFit:
    """The same fit by us and in plain NumPy, at d = 30: at d = 200 plain NumPy takes minutes (see `compare`)."""

    timeout = 120

    def setup(self):
        self.panel = problems.panel(5, 30, 2, 2000)

    def time_ours(self):
        return fv.FedVAR(2, 3, local_tol=1e-6, **OPTIONS).fit(self.panel)

    def time_plain_numpy(self):
        return plain.fit(self.panel, 2, 3, OPTIONS["n_rounds"], OPTIONS["l1_penalty"], OPTIONS["local_iter"], 1e-6)

    def track_difference(self):
        return float(np.max(np.abs(self.time_ours().A0_ - self.time_plain_numpy()[0])))


@with_peak_memory
class SmallFit:
    """Five clients of twelve monthly variables, as a notebook's first fit: penalties by rolling forecasts."""

    def setup(self):
        self.panel = problems.panel(5, 12, 4, 414, 3)

    def time_ours(self):
        return fv.FedVAR(4, 3).fit(self.panel)

    def time_penalty_given(self):
        return fv.FedVAR(4, 3, l1_penalty=0.1).fit(self.panel)

    def track_largest_gap(self):
        return max(self.time_ours().gap_.values())


@with_peak_memory
class TunedLocal:
    """Nuclear norm and l1 of one client, both penalties from a grid by rolling forecasts (paper, equation 4)."""

    timeout = 120

    def setup(self):
        panel = problems.panel(5, 12, 4, 414, 3)
        self.panel = dict([next(iter(panel.items()))])

    def time_ours(self):
        return fv.LocalVAR(4, n_origins=20, refit_every=5, tol=1e-6).fit(self.panel)

    def track_gap(self):
        return max(self.time_ours().gap_.values())


@with_peak_memory
class LeastSquares:
    params = (["ours", "normal equations", "statsmodels"],)
    param_names = ("by",)

    def setup(self, by):
        if by == "statsmodels" and missing("statsmodels"):
            raise NotImplementedError(missing("statsmodels"))
        self.y = problems.series(10_000, 25)
        solve = {"normal equations": blas.least_squares, "statsmodels": statsmodels.least_squares, "ours": self._ours}
        self.solve = solve[by]

    @staticmethod
    def _ours(y, order):
        return fv.LeastSquaresVAR(order, center=False, scale=False).fit({"all": y}).coef_["all"]

    def time_fit(self, by):
        return self.solve(self.y, 4)

    def track_difference_to_normal_equations(self, by):
        return float(np.max(np.abs(self.time_fit(by) - blas.least_squares(self.y, 4))))
