"""asv suites of whole fits."""

from __future__ import annotations

import fedvar_fast as fv

from . import plain, problems

OPTIONS = {"n_rounds": 50, "local_iter": 100, "l1_penalty": 0.1}


class WholeFit:
    """d = 200, p = 2, K = 5, T_k = 2,000: 50 rounds, then 100 FISTA steps or a gap of 1e-6."""

    timeout = 300
    number = 1
    repeat = 3

    def setup(self):
        self.panel = problems.panel()

    def time_ours(self):
        fv.FedVAR(2, 3, local_tol=1e-6, **OPTIONS).fit(self.panel)

    def time_plain_numpy(self):
        plain.fit(self.panel, 2, 3, OPTIONS["n_rounds"], OPTIONS["l1_penalty"], OPTIONS["local_iter"], 1e-6)

    def track_largest_gap(self):
        return max(fv.FedVAR(2, 3, local_tol=1e-6, **OPTIONS).fit(self.panel).gap_.values())


class SmallFit:
    """Five clients of twelve monthly variables, as a notebook's first fit."""

    def setup(self):
        self.panel = problems.panel(5, 12, 4, 414, 3)

    def time_ours(self):
        fv.FedVAR(4, 3).fit(self.panel)
