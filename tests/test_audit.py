"""Audit of the private fit: no pair of neighbours goes beyond the ledger; what is broken on purpose is caught."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.privacy import audit
from benchmarks.privacy.neighbours import DELTA, EPSILON, OUTLIER, UNITS, all_pairs
from fedvar_fast.exceptions import PrivacyNoiseWarning
from fedvar_fast.privacy import Ledger

# A message of zeros makes the curator divide by the smallest float: an overflow, and of no consequence.


PAIRS = {f"{pair.privacy.unit}: {pair.name}": pair for pair in all_pairs()}
WORST = {pair.privacy.unit: pair for pair in reversed(PAIRS.values()) if pair.worst}


def found(unit, fault, n):
    """The unit's worst pair, its whole budget in one round: fewer messages, the same transcript in mu."""
    return audit.audit(replace(WORST[unit], n_rounds=1), n, seed=1, fault=fault)


# -- the mechanism -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_no_transcript_moves_further_than_the_ledger_says(name):
    finding = audit.audit(PAIRS[name], 4)
    assert finding.epsilon == pytest.approx(EPSILON, rel=1e-9)
    assert finding.exact_holds and finding.attack_holds
    assert max(finding.by_release.values()) <= 1.0 + audit.ROUNDING


@pytest.mark.parametrize("unit", UNITS)
def test_the_worst_pair_uses_most_of_the_budget(unit):
    assert audit.audit(WORST[unit], 4).share > 0.99


def test_the_attack_stays_below_the_report():
    finding = found("observation", "", 400)
    assert finding.verdict == "holds"
    assert finding.mu_lower > 0.05 * finding.mu  # it does find something


def test_half_the_noise_is_caught():
    finding = found("client", "half the noise", 700)
    assert finding.exact_holds and not finding.attack_holds
    assert finding.mu_lower > finding.mu and finding.gaussian_epsilon_lower > finding.epsilon


@pytest.mark.parametrize("unit", ["observation", "innovation"])
def test_scaling_from_raw_data_is_caught(unit):
    pair = replace(PAIRS[f"{unit}: {OUTLIER}"], n_rounds=1)
    sound, broken = (audit.audit(pair, 80, fault=fault) for fault in ("", "scaling from raw data"))
    assert sound.verdict == "holds"
    assert broken.mu_lower > broken.mu and broken.gaussian_epsilon_lower > broken.epsilon
    assert broken.largest_share > 1.0


def test_a_fault_is_over_when_its_audit_is():
    before = audit.curator_module.add_noise, audit.Curator.release_scaling
    for fault in audit.FAULTS:
        audit.audit(replace(WORST["client"], n_rounds=1), 2, fault=fault)
    assert (audit.curator_module.add_noise, audit.Curator.release_scaling) == before


def test_the_audited_transcript_is_that_of_a_fit():
    for pair in (PAIRS["observation: signs, a middle row reversed"], PAIRS["innovation: first row"]):
        notes, ledger = audit.transcript(pair, 0, 7)
        model = pair.model(7).set_params(l1_penalty=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyNoiseWarning)
            model.fit({"client": pair.before})
        released = Ledger.from_records(model.privacy_record_["ledger"]).releases()
        # Later sensitivities depend on what was released before: so the noise was the same, too.
        assert [replace(one, note="") for one in released] == list(ledger.releases())
        assert [one.sigma for one in released] == [note.sigma for note in notes]


# -- the attack ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_the_lower_bounds_of_two_gaussians(mu):
    rng = np.random.default_rng(0)
    mu_lower, epsilon_lower = audit.attack(mu + rng.standard_normal(100_000), rng.standard_normal(100_000), DELTA)
    assert 0.8 * mu < mu_lower < mu
    assert 0.0 < epsilon_lower < audit.gaussian_epsilon(mu, DELTA)


def test_nothing_is_found_where_nothing_is():
    assert audit.attack(np.zeros(100), np.zeros(100), DELTA) == (0.0, 0.0)
    same = np.random.default_rng(0).standard_normal((2, 2000))
    assert audit.attack(*same, DELTA) == (0.0, 0.0)


def test_the_rates_bounds_are_those_of_clopper_and_pearson():
    for count in (0, 3, 40, 50):
        theirs = binomtest(count, 50).proportion_ci(audit.CONFIDENCE, method="exact").high
        assert audit.upper_rate(count, 50) == pytest.approx(theirs, rel=1e-9)


def test_a_transcript_of_another_shape_is_refused():
    pair = PAIRS["client: constant, alternating from bound to bound"]
    notes, _ = audit.transcript(pair, 0, 1)
    with pytest.raises(AssertionError, match="shows the data"):
        audit.transcript(pair, 1, 0, notes[1:])
    with pytest.raises(AssertionError, match="fewer messages"):
        audit.transcript(pair, 1, 0, [*notes, notes[-1]])


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(tmp_path, capsys):
    arguments = ["--transcripts", "2", "--worst", "4", "--only", "client (two|constant)", "--out", str(tmp_path)]
    assert audit.main(arguments) == 1  # so few transcripts do not catch half the noise
    page = (tmp_path / "audit.md").read_text(encoding="utf-8")
    assert "3 of 3 pairs hold" in page and "0 of 1 caught" in page and "NOT CAUGHT" in page
    assert page.count("(4.000, 1e-05)") == 4 and json.dumps(str(tmp_path)).strip('"') in page
    assert len(capsys.readouterr().out.splitlines()) == 5
