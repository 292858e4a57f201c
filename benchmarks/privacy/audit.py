"""Audit of the private fit: worst-case neighbours, the best possible attack, and mechanisms broken on purpose.

    python benchmarks/privacy/audit.py [--transcripts 250] [--worst 1000] [--seed 0] [--only PATTERN] [--out FOLDER]

One client, everything that it sends. All of that goes through `Curator.send`, where it is taken down: the value before
noise, the sigma that the ledger has, what left. The same transcript is then fed to a client with the neighbouring
series, which says what *its* values would have been given the same earlier releases. Two judgements follow:

- exact: ``sum_n ||m_n - m*_n||^2 / sigma_n^2`` over the adaptive transcript must not exceed the ledger's ``mu^2``;
- by attack: the likelihood ratio of whole transcripts, noise drawn by the mechanism itself, tells the two series
  apart; thresholds are chosen on one half of the transcripts and judged on the other, with Clopper-Pearson bounds.

Sources: Jagielski, Ullman and Oprea, "Auditing Differentially Private Machine Learning", NeurIPS 2020 (bounds from
error rates); Nasr et al., "Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023 (mu).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import platform
import re
import shlex
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.privacy.neighbours import OUTLIER, UNITS, Pair, all_pairs
from fedvar_fast.estimators import fedvar_private
from fedvar_fast.federation import curator as curator_module
from fedvar_fast.federation.curator import Curator
from fedvar_fast.federation.private import fit_private, private_rank
from fedvar_fast.kernels import one_blas_thread
from fedvar_fast.privacy import Ledger
from fedvar_fast.privacy.accounting import gaussian_epsilon
from fedvar_fast.privacy.mechanism import add_noise
from fedvar_fast.scaling import Scaling

#: Both error rates' bounds hold together with this probability.
CONFIDENCE = 0.999
#: Relative excess of the exact sum over the ledger's mu^2 that passes for rounding.
ROUNDING = 1e-9
N_THRESHOLDS = 200
#: Neighbouring thresholds that are averaged when one is chosen, for mu and for epsilon (which is best far out).
SMOOTHED = 61, 11

# -- transcripts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """One release: its value before noise, the sigma that the ledger has (of a replay: would have), and what left."""

    what: str
    mean: np.ndarray
    sigma: float
    sent: np.ndarray


class Gate(Curator):
    """A client whose releases are taken down; with a script it sends what the script has, not noise of its own."""

    notes: list[Note]
    script: Iterator[Note] | None = None

    def send(self, what, value, sensitivity, mu, context=b""):
        if self.script is None:
            sent, sigma = super().send(what, value, sensitivity, mu, context), self.ledger.releases(self.name)[-1].sigma
        else:
            line = next(self.script)
            if line.what != what or line.sent.shape != value.shape:
                raise AssertionError(f"the neighbour sends {what!r}, not {line.what!r}: what is sent shows the data")
            sent, sigma = line.sent.copy(), sensitivity / mu
        self.notes.append(Note(what, np.array(value), sigma, sent))
        return sent


def transcript(pair, side, seed, script=None):
    """Notes of one client's whole fit on side 0 (`before`) or 1 (`after`), and its ledger."""
    model, privacy, ledger = pair.model(seed), pair.privacy, Ledger()
    strength, limit = pair.budget
    values = np.ascontiguousarray((pair.before, pair.after)[side])
    columns = tuple("abcdefgh"[: values.shape[1]])
    neighbours = fedvar_private._neighbours(privacy, values, columns, pair.order)
    gate = Gate("client", values, pair.order, privacy, neighbours, strength, ledger, seed, 1)
    gate.notes, gate.script = [], None if script is None else iter(script)
    ledger.limit("client", limit)
    scaling = fedvar_private._scaling(model, gate, privacy.column_bounds(columns), len(columns))
    gate.take_scaling(scaling, privacy.sensitive_columns(columns))
    rank = pair.rank
    if pair.votes:
        rank = private_rank([(gate, pair.votes[side])], min(values.shape[1], values.shape[1] * pair.order))
    fit_private([gate], rank, "full", pair.n_rounds)
    if gate.script is not None and next(gate.script, None) is not None:
        raise AssertionError("the neighbour sends fewer messages: what is sent shows the data")
    return gate.notes, ledger


def loss(notes, others):
    """``log p(transcript) - log p*(transcript)``: Gaussians around what each series had before noise."""
    total = 0.0
    for one, other in zip(notes, others, strict=True):
        square, square_other = (np.sum((one.sent - it.mean) ** 2) / it.sigma**2 for it in (one, other))
        total += one.sent.size * math.log(other.sigma / one.sigma) + 0.5 * float(square_other - square)
    return total


def shifts(notes, others):
    """``||m_n - m*_n||^2 / sigma_n^2`` of every release."""
    return [float(np.sum((a.mean - b.mean) ** 2)) / a.sigma**2 for a, b in zip(notes, others, strict=True)]


# -- the attack ----------------------------------------------------------------------------------------------


def upper_rate(count, n):
    """Clopper-Pearson: what the true rate exceeds with probability (1 - CONFIDENCE) / 2 at the most."""
    bound = beta.ppf(1.0 - (1.0 - CONFIDENCE) / 2.0, np.asarray(count) + 1.0, np.maximum(n - np.asarray(count), 0.5))
    return np.where(np.asarray(count) >= n, 1.0, bound)


def lower_bounds(positives, negatives, thresholds, delta):
    """Lower bounds (mu, epsilon) of "it is D where the statistic exceeds the threshold", one for each threshold."""
    n, m = len(negatives), len(positives)
    false_positive = upper_rate(n - np.searchsorted(np.sort(negatives), thresholds, side="right"), n)
    false_negative = upper_rate(np.searchsorted(np.sort(positives), thresholds, side="right"), m)
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = ndtri(1.0 - false_positive) - ndtri(false_negative)
        ratios = [
            np.log(np.maximum(1.0 - delta - first, 0.0) / second)
            for first, second in ((false_negative, false_positive), (false_positive, false_negative))
        ]
    return np.maximum(np.nan_to_num(mu, nan=0.0, neginf=0.0), 0.0), np.maximum(np.maximum(*ratios), 0.0)


def attack(positives, negatives, delta):
    """The two lower bounds, each at the threshold that served best, with those about it, on every other transcript."""
    choice = np.quantile(np.concatenate([positives[::2], negatives[::2]]), np.linspace(0.0, 1.0, N_THRESHOLDS))
    tried = lower_bounds(positives[::2], negatives[::2], choice, delta)
    judged = lower_bounds(positives[1::2], negatives[1::2], choice, delta)
    best = [np.argmax(np.convolve(one, np.ones(width), "same")) for one, width in zip(tried, SMOOTHED, strict=True)]
    return tuple(float(values[place]) for values, place in zip(judged, best, strict=True))


@dataclass(frozen=True)
class Finding:
    """What the audit of one pair found.

    Attributes
    ----------
    pair : Pair
    fault : str
        What was broken on purpose; empty for the mechanism as it is.
    n : int
        Transcripts on each side.
    mu, epsilon : float
        What the ledger reports of the client.
    mu_lower, epsilon_lower : float
        What the attack proves: of ``mu`` by the Gaussian trade-off, of epsilon by the rates alone.
    share, largest_share : float
        Mean and largest ``sum ||m - m*||^2 / sigma^2`` over the ledger's ``mu^2``.
    by_release : dict of str to float
        Mean share that each kind of release reaches of its own mu^2.
    """

    pair: Pair
    fault: str
    n: int
    mu: float
    epsilon: float
    mu_lower: float
    epsilon_lower: float
    share: float
    largest_share: float
    by_release: dict[str, float] = field(default_factory=dict)

    @property
    def gaussian_epsilon_lower(self):
        """The epsilon at delta that goes with `mu_lower`."""
        return gaussian_epsilon(self.mu_lower, self.pair.privacy.delta)

    @property
    def exact_holds(self):
        return self.largest_share <= 1.0 + ROUNDING

    @property
    def attack_holds(self):
        return (
            self.mu_lower <= self.mu
            and self.epsilon_lower <= self.epsilon
            and self.gaussian_epsilon_lower <= self.epsilon
        )

    @property
    def verdict(self):
        if self.exact_holds and self.attack_holds:
            return "holds"
        return "EXCEEDED by " + " and ".join(
            name for name, holds in (("shift", self.exact_holds), ("attack", self.attack_holds)) if not holds
        )


def audit(pair, n, seed=0, fault=""):
    """`n` transcripts on each side of a pair, each replayed on the other side."""
    statistics, moved, own = ([], []), [], {}
    label = f"{pair.privacy.unit} {pair.name} {fault}"
    first = (seed << 64) + (zlib.crc32(label.encode()) << 32)  # no two audits share their noise
    with FAULTS[fault](), one_blas_thread():
        for number in range(n):
            for side in (0, 1):
                notes, ledger = transcript(pair, side, first + 2 * number + side)
                others, _ = transcript(pair, 1 - side, 0, notes)
                statistics[side].append(loss(notes, others) * (1 - 2 * side))
                steps = shifts(notes, others)
                moved.append(sum(steps))
                for release, step in zip(ledger.releases(), steps, strict=True):
                    own.setdefault(re.sub(r"round \d+ ", "", release.what), []).append(step / release.mu**2)
    mu, delta = ledger.total_mu("client"), pair.privacy.delta
    mu_lower, epsilon_lower = attack(np.array(statistics[0]), np.array(statistics[1]), delta)
    return Finding(
        pair, fault, n, mu, ledger.total_epsilon("client", delta), mu_lower, epsilon_lower,
        float(np.mean(moved)) / mu**2, max(moved) / mu**2, {what: float(np.mean(each)) for what, each in own.items()},
    )  # fmt: skip


# -- broken on purpose ---------------------------------------------------------------------------------------


def half_the_noise():
    """Noise of half the sigma that the ledger has."""

    def weak(values, sigma, *where):
        return add_noise(values, 0.5 * sigma, *where)

    return mock.patch.object(curator_module, "add_noise", weak)


def raw_scaling():
    """Centre and scale are released with noise and recorded, but those of the raw rows are used."""
    released = Curator.release_scaling

    def leaky(self, low, high, center, scale):
        released(self, low, high, center, scale)
        raw = Scaling.from_values(np.clip(self.values, low, high), center=center, scale=scale)
        return Scaling.given(raw.center, raw.scale, lower=low, upper=high)

    return mock.patch.object(Curator, "release_scaling", leaky)


FAULTS: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "": contextlib.nullcontext,
    "half the noise": half_the_noise,
    "scaling from raw data": raw_scaling,
}


def broken_pairs():
    """(fault, pair) that the audit must object to.

    Scaling from raw data does not show under the client unit, unless it is sent: there the noise of everything else is
    made for any change of all rows.
    """
    pairs = all_pairs()
    halves = [("half the noise", next(one for one in pairs if one.privacy.unit == unit)) for unit in UNITS]
    return halves + [("scaling from raw data", one) for one in pairs if one.name == OUTLIER]


# -- the page ------------------------------------------------------------------------------------------------

HEADER = (
    "unit", "neighbours", "reported (ε, δ)", "reported μ", "μ at least", "ε at least, from μ", "ε at least, from rates",
    "share of μ², mean", "share of μ², largest", "verdict",
)  # fmt: skip


def cells(one):
    verdict = one.verdict
    if one.fault:
        verdict = verdict.replace("EXCEEDED", "caught") if verdict != "holds" else "NOT CAUGHT"
    name = one.pair.name + (f" (n = {one.n:,})" if one.pair.worst or one.fault else "")
    return (
        one.pair.privacy.unit, f"{one.fault}: {name}" if one.fault else name,
        f"({one.epsilon:.3f}, {one.pair.privacy.delta:g})", f"{one.mu:.4f}", f"{one.mu_lower:.3f}",
        f"{one.gaussian_epsilon_lower:.2f}", f"{one.epsilon_lower:.2f}", f"{one.share:.3f}",
        f"{one.largest_share:.3f}", verdict,
    )  # fmt: skip


def markdown(header, rows, left=2):
    rule = ["---" if number < left else "---:" for number in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def best_by_release(findings):
    """(release, largest mean share of its own mu^2, unit and pair that reach it)."""
    best: dict[str, tuple[float, str]] = {}
    for one in findings:
        for what, share in one.by_release.items():
            best[what] = max(best.get(what, (-1.0, "")), (share, f"{one.pair.privacy.unit}: {one.pair.name}"))
    return [(what, f"{share:.3f}", where) for what, (share, where) in best.items()]


def page(sound, broken, command, counts, seconds):
    versions = [f"fedvar_fast {metadata.version('fedvar_fast')}", f"Python {platform.python_version()}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("numpy", "scipy")]
    held, caught = sum(one.verdict == "holds" for one in sound), sum(not one.attack_holds for one in broken)
    tightest = max(sound, key=lambda one: one.share)
    return f"""# Audit of the private fit

- command: `{command}`
- date: {datetime.date.today()}
- versions: {", ".join(versions)}
- transcripts: {counts}
- bounds of the error rates: Clopper-Pearson, both together at {CONFIDENCE:.1%}
- time: {seconds:.0f} s, one process

The mechanism as it is: {held} of {len(sound)} pairs hold. Broken on purpose: {caught} of {len(broken)} caught.
The worst pair reaches {tightest.share:.1%} of the ledger's μ² ({tightest.pair.privacy.unit}: {tightest.pair.name}).

{METHOD}

## The mechanism as it is

{markdown(HEADER, [cells(one) for one in sound])}

## Broken on purpose

{BROKEN}

{markdown(HEADER, [cells(one) for one in broken])}

## How tight each bound is

{TIGHT}

{markdown(("release", "share", "pair"), best_by_release(sound), left=1)}
"""


METHOD = """\
Two series of one client that are neighbours go through the scaling, the whitening, the start and the rounds; everything
that leaves is taken down, and replayed on the other series. *Share of μ²* is the exact part: `sum ||m - m*||² / σ²`
over an adaptive transcript, divided by the ledger's total μ²; it must never exceed 1. *At least* is the attack: the
likelihood ratio of whole transcripts, its threshold chosen on one half of them and judged on the other. What is μ-GDP
lets no test have `Φ⁻¹(1 - false positives) - Φ⁻¹(false negatives) > μ`: that is *μ at least*, and *ε from μ* its
epsilon at δ. *ε from rates* uses (ε, δ) alone, and needs far more transcripts to come near. Where a pair has few
transcripts a lower bound of zero says only that the attack had too few: there the exact part alone is the judge."""

BROKEN = """\
The same code, thresholds chosen the same way. Half the noise: drawn with σ/2, while the ledger has σ; the exact part,
which takes σ from the ledger, cannot see that, the attack does. Scaling from raw data: the noisy centre and scale are
sent and recorded, but those of the raw rows are used (they are not sent themselves). Under the client unit that does no
harm, so it is not tried: the noise of everything else is made for any change of all rows."""

TIGHT = """\
The largest mean share of its own μ² that each kind of release reaches, and where. No pair reaches all at once: what
moves a second moment furthest turns a row by a right angle, what moves a gradient furthest reverses it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transcripts", type=int, default=250, help="on each side of a pair")
    parser.add_argument(
        "--worst", type=int, default=1000, help="the same, for the worst pairs and the broken mechanisms"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="pairs whose unit or name matches this pattern")
    parser.add_argument("--out", type=Path, help="folder for audit.md")
    chosen = parser.parse_args(arguments)
    begin, sound, broken = time.monotonic(), [], []

    def tell(one):
        print(" | ".join(cells(one)), flush=True)
        return one

    print(" | ".join(HEADER))
    for pair in all_pairs():
        if re.search(chosen.only, f"{pair.privacy.unit} {pair.name}"):
            sound.append(tell(audit(pair, chosen.worst if pair.worst else chosen.transcripts, chosen.seed)))
    for fault, pair in broken_pairs():
        if re.search(chosen.only, f"{pair.privacy.unit} {pair.name}"):
            broken.append(tell(audit(pair, chosen.worst, chosen.seed, fault)))
    if chosen.out is not None and sound:
        given = sys.argv[1:] if arguments is None else arguments
        command = shlex.join(["python", "benchmarks/privacy/audit.py", *given])
        counts = f"{chosen.transcripts:,} on each side of a pair, {chosen.worst:,} where n says so; seed {chosen.seed}"
        chosen.out.mkdir(parents=True, exist_ok=True)
        text = page(sound, broken, command, counts, time.monotonic() - begin)
        (chosen.out / "audit.md").write_text(text, encoding="utf-8")
    return int(any(one.verdict != "holds" for one in sound) or any(one.attack_holds for one in broken))


if __name__ == "__main__":
    raise SystemExit(main())
