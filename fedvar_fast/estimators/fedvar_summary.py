"""A federated fit in words, and what its tuning sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvar_fast.moments import LaggedMoments
from fedvar_fast.privacy.ledger import Ledger

__all__ = ["record_choices", "summary_of"]


def summary_of(model: Any) -> str:
    """Shape, rounds, and a line per client of a fitted `FedVAR`."""
    dim, width = model.A0_.shape
    lines = [
        f"FedVAR: {len(model.clients_)} client(s), {dim} variables, order {width // dim}, rank {model.rank_}",
        ("Stage I: closed form" if model.step_ is None else f"Stage I: {model.n_rounds_} rounds")
        + ("" if model.step_ is None else f", step {model.step_:.4g}")
        + ("" if "loss" not in model.history_ else f", pooled loss {model.history_['loss'][-1]:.6g}")
        + ("" if model.signal_to_noise_ is None else f", signal to privacy noise {model.signal_to_noise_:.3g}"),
        f"||A_0||_F = {np.linalg.norm(model.A0_):.4g}",
        "",
        f"{'client':<20} {'rows':>7} {'penalty':>9} {'||D||_F':>9} {'nonzero':>8} {'gap':>9} {'radius':>7}",
    ]
    for name in model.clients_:
        delta = model.deltas_[name]
        lines.append(
            f"{name:<20} {model.n_rows_[name]:>7} {model.l1_penalty_[name]:>9.4g} "
            f"{np.linalg.norm(delta):>9.4g} {np.count_nonzero(delta):>8} {model.gap_[name]:>9.2g} "
            f"{model.spectral_radius_[name]:>7.4g}"
            + ("" if model.shared_used_.get(name, True) else "  its own low-rank part")
        )
    return "\n".join(lines)


def record_choices(
    ledger: Ledger, moments: Mapping[str, LaggedMoments], votes: bool, starts_local: bool, tunes_step: bool
) -> None:
    """What tuning sends from a client without noise, under ``calibration="paper"``."""
    longest = max(moments, key=lambda name: moments[name].n_rows)
    for name, one in moments.items():
        if votes:
            ledger.record(name, "rank vote", n_numbers=1, sensitivity=None, sigma=0.0)
        if starts_local and name == longest:
            ledger.record(name, "local start", n_numbers=one.yx.size, sensitivity=None, sigma=0.0)
        if tunes_step:
            what = "gradients and errors of the step's tuning"
            ledger.record(name, what, n_numbers=one.yx.size, sensitivity=None, sigma=0.0)
