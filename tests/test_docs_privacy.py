"""The privacy page: its code runs, and its numbers are those of the package."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import pytest

import fedvar_fast as fv
from fedvar_fast.exceptions import GridEdgeWarning, PrivacyNoiseWarning
from fedvar_fast.federation.curator import _CENTRE_SHARE
from fedvar_fast.federation.private import DEFAULT_ROUNDS
from fedvar_fast.privacy.accounting import classical_sigma, gaussian_epsilon, gaussian_mu
from fedvar_fast.privacy.mechanism import DEFAULT_SHARES

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "privacy.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
#: Beginning of a row of the table of releases, and the part of the budget that it takes.
SHARE_OF_ROW = {
    "centre": _CENTRE_SHARE * DEFAULT_SHARES["scale"],
    "scale": (1.0 - _CENTRE_SHARE) * DEFAULT_SHARES["scale"],
    "rank vote": DEFAULT_SHARES["rank"],
    "second moments of the regressors": DEFAULT_SHARES["whitening"],
    "start": DEFAULT_SHARES["start"],
    "round n gradient pair": DEFAULT_SHARES["rounds"],
    "round n rows within the clipping norm": DEFAULT_SHARES["clip"],
}


def in_page(text: str) -> bool:
    return re.search(rf"(?<![\d.]){re.escape(text)}(?!\d)", PAGE) is not None


@pytest.fixture(scope="module")
def names() -> dict[str, object]:
    """What the Python blocks leave behind, run one after the other."""
    found: dict[str, object] = {}
    with warnings.catch_warnings():
        # The noise is another one at every run.
        warnings.simplefilter("ignore", GridEdgeWarning)
        warnings.simplefilter("ignore", PrivacyNoiseWarning)
        for number, block in enumerate(BLOCKS, start=1):
            exec(compile(block, f"docs/privacy.md, block {number}", "exec"), found)
    return found


def table_of_shares() -> dict[str, float]:
    rows = re.findall(r"^\| ([a-z ]+?) \|.*\| (0\.\d+) \|$", PAGE, flags=re.MULTILINE)
    return {name: float(share) for name, share in rows}


def test_python_blocks_run(names):
    assert len(BLOCKS) == 2
    report = names["model"].privacy_report_
    assert not report.reproducible
    for figures in report.clients.values():
        assert figures.total_epsilon == pytest.approx(2.0, rel=1e-9)
        assert figures.without_noise == ()


def test_table_names_every_release(names):
    seen = {release.what for release in names["model"].privacy_report_.ledger.releases()}
    in_table = {re.sub(r"\d+", "n", what) for what in seen}
    assert in_table == set(table_of_shares()) - {"rank vote"}  # the block gives the rank


def test_default_shares():
    assert table_of_shares() == pytest.approx(SHARE_OF_ROW)
    assert sum(DEFAULT_SHARES.values()) == pytest.approx(1.10)
    assert in_page("1.10") and in_page(f"{DEFAULT_SHARES['scale']:g}")
    assert in_page(f"split {_CENTRE_SHARE:g} to the centre and {1.0 - _CENTRE_SHARE:g} to the scale")
    assert DEFAULT_ROUNDS == 8 and "eight rounds, the default" in PAGE.replace("\n", " ")


def test_releases_cost_their_shares(names):
    ledger = names["model"].privacy_report_.ledger
    spent: dict[str, float] = {}
    for release in ledger.releases("client_1"):
        what = re.sub(r"\d+", "n", release.what)
        spent[what] = spent.get(what, 0.0) + release.mu**2
    total = gaussian_mu(2.0, 1e-5) ** 2
    without_vote = sum(DEFAULT_SHARES.values()) - DEFAULT_SHARES["rank"]
    for what, mu_squared in spent.items():
        assert mu_squared / total == pytest.approx(SHARE_OF_ROW[what] / without_vote, rel=1e-9)


def test_length_that_a_series_must_have():
    dim, rank, n_rows = 50, 2, 40_000
    excess = 4 * 2**2 * rank * (2 * dim - rank) / (gaussian_mu(2.0, 1e-5) ** 2 * n_rows)
    share = DEFAULT_SHARES["rounds"] / (sum(DEFAULT_SHARES.values()) - DEFAULT_SHARES["rank"])
    of_defaults = excess / share * DEFAULT_ROUNDS / (DEFAULT_ROUNDS - 2)
    assert in_page(f"{excess:.2f}") and in_page(f"at least {math.sqrt(1.0 + excess):.2f} times")
    assert in_page(f"{of_defaults:.2f}") and in_page(f"{math.sqrt(1.0 + of_defaults):.2f} times")


def test_scale_needs_half_of_the_centre(names):
    releases = {release.what: release for release in names["model"].privacy_report_.ledger.releases("client_1")}
    assert releases["centre"].sensitivity == pytest.approx(2.0 * math.sqrt(4) / 20_000)
    assert releases["scale"].sensitivity == pytest.approx(0.5 * releases["centre"].sensitivity)


def test_numbers_of_the_accountant():
    assert in_page(f"{fv.privacy.noise_multiplier(2, 1e-5, n_rounds=100):.9f}") and in_page("19.938124456")
    classical = classical_sigma(2, 1e-5)
    assert in_page(f"{classical:.4f}") and in_page(f"{classical:.10f}")
    assert in_page(f"{fv.privacy.epsilon(classical, 1e-5, n_rounds=100):.2f}") and in_page("25.44")
    twice = gaussian_epsilon(math.sqrt(2.0) * gaussian_mu(2, 1e-5), 1e-5)
    assert in_page(f"({twice:.3f}, 1e-5)")
    assert in_page(f"{math.sqrt(5.0) / 2.0:.3f}")


def test_commands_run(tmp_path, monkeypatch):
    pytest.importorskip("click")
    from click.testing import CliRunner

    from fedvar_fast._cli_commands import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "LEDGERS").mkdir()

    def run(line: str) -> str:
        result = CliRunner().invoke(cli, line.split(), prog_name="fedvar-fast")
        assert result.exit_code == 0, result.output
        return result.output

    run("simulate DIR --clients 3 --dim 4 --rows 2000 --rank 1 --seed 3")
    lines = re.findall(r"^    fedvar-fast (.*)$", PAGE, flags=re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["fit", "report"]
    outputs = [run(line) for line in lines]
    assert "(epsilon, delta) = (2, 1e-05)" in outputs[1]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "LEDGERS").iterdir()}
    assert len(kept) == 3
    run(lines[0])  # the same options and data: stored messages, no new entry
    assert {path.name: path.read_bytes() for path in (tmp_path / "LEDGERS").iterdir()} == kept
