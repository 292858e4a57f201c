"""The ledger in files: what it keeps through a crash, and what it refuses."""

import hashlib
import json
import math
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from fedvar_fast.exceptions import BudgetError, DataError, DataTypeError, OptionError, OptionTypeError
from fedvar_fast.privacy import ledgerfile
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.ledgerfile import FileLedger, fingerprint

VALUES = np.arange(24.0).reshape(12, 2)
VALUES[3, 1] = np.nan
PUBLIC = {"columns": ["gdp", "prices"], "n_rows": 12, "order": 2}
FILE = "Ohio.ledger.jsonl"
MESSAGE = np.array([[1.5, -0.0, np.nan], [np.inf, 5e-324, 0.1]])


def opened(folder, client="Ohio", public=PUBLIC, values=VALUES):
    ledger = FileLedger(folder)
    try:
        ledger.open(client, public, values)
    except BaseException:
        ledger.close()
        raise
    return ledger


def refuse_to_draw():
    raise AssertionError("the message was drawn again")


def fill(ledger, client="Ohio"):
    ledger.record(client, "number of rows", n_numbers=1, sensitivity=0.0, sigma=0.0, note="public, “as agreed”")
    ledger.send(client, "start", b"0", MESSAGE.copy, sensitivity=1.0, sigma=2.0, unit="observation", relation="one row")
    ledger.send(client, "round 1", b"1", lambda: np.full(3, 0.25), n_numbers=2, sensitivity=1.0, sigma=4.0)
    ledger.send(client, "nothing", b"2", lambda: np.empty((0, 2)), sensitivity=None, sigma=0.0)


def refused(folder, data, match):
    (folder / FILE).write_bytes(data)
    with pytest.raises(DataError, match=match):
        opened(folder)
    assert (folder / FILE).read_bytes() == data, "a refused file stays as it is"


@pytest.fixture
def written(tmp_path):
    """Bytes of a ledger of five lines, and a folder to try changes of it in."""
    with opened(tmp_path) as ledger:
        fill(ledger)
    return (tmp_path / FILE).read_bytes(), tmp_path


def test_what_was_written_is_read_back(tmp_path):
    plain = Ledger()
    fill(plain)
    with opened(tmp_path) as first:
        fill(first)
        assert first.to_records() == plain.to_records()
    assert first.to_records() == plain.to_records(), "a closed ledger can still be read"
    with opened(tmp_path) as second:
        assert second.releases() == plain.releases()
        assert second.total_mu("Ohio", with_noise_only=True) == plain.total_mu("Ohio", with_noise_only=True)
        assert second.running("Ohio", 1e-5) == plain.running("Ohio", 1e-5)
        second.record("Ohio", "more", n_numbers=1, sensitivity=1.0, sigma=1.0)
    with opened(tmp_path) as third:
        assert third.to_records() == second.to_records() and len(third) == 5


def test_a_retry_after_a_crash_sends_the_same_bits(written):
    _, folder = written
    with opened(folder) as ledger:
        again = ledger.send("Ohio", "start", b"0", refuse_to_draw, sensitivity=1.0, sigma=2.0)
        assert again.shape == MESSAGE.shape and again.tobytes() == MESSAGE.tobytes()
        empty = ledger.send("Ohio", "nothing", b"2", refuse_to_draw, sensitivity=None, sigma=0.0)
        assert empty.shape == (0, 2)
        assert len(ledger) == 4
        fresh = ledger.send("Ohio", "start", b"another point", lambda: np.ones(1), sensitivity=1.0, sigma=2.0)
        assert fresh[0] == 1.0 and len(ledger) == 5


def test_the_file_has_the_line_before_the_message_leaves(tmp_path):
    with opened(tmp_path) as ledger:
        before = len((tmp_path / FILE).read_bytes().splitlines())
        ledger.send("Ohio", "start", b"", lambda: np.ones(2), sensitivity=1.0, sigma=1.0)
        lines = (tmp_path / FILE).read_bytes().splitlines()
        assert (before, len(lines)) == (1, 2)
        assert json.loads(lines[1])["what"] == "start"


def test_a_killed_process_keeps_the_record(tmp_path):
    code = f"""
import os
import numpy as np
from fedvar_fast.privacy.ledgerfile import FileLedger
ledger = FileLedger({str(tmp_path)!r})
ledger.open("Ohio", {{"order": 1}}, np.zeros((3, 1)))
ledger.send("Ohio", "start", b"0", lambda: np.full(2, 0.1), sensitivity=1.0, sigma=2.0)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    with opened(tmp_path, public={"order": 1}, values=np.zeros((3, 1))) as ledger:
        assert ledger.total_mu("Ohio") == 0.5
        again = ledger.send("Ohio", "start", b"0", refuse_to_draw, sensitivity=1.0, sigma=2.0)
        assert again.tobytes() == np.full(2, 0.1).tobytes()


def test_an_incomplete_last_line_is_cut_off(written):
    data, folder = written
    lines = data.splitlines(keepends=True)
    complete = b"".join(lines[:-1])
    for length in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        (folder / FILE).write_bytes(complete + lines[-1][:length])
        with opened(folder) as ledger:
            assert len(ledger) == 3
            assert (folder / FILE).read_bytes() == complete
            ledger.record("Ohio", "after", n_numbers=1, sensitivity=1.0, sigma=1.0)
        with opened(folder) as ledger:
            assert [release.what for release in ledger.releases()][-1] == "after"


def test_an_incomplete_header_begins_anew(written):
    data, folder = written
    for length in (0, 1, data.index(b"\n")):
        (folder / FILE).write_bytes(data[:length])
        with opened(folder) as ledger:
            assert len(ledger) == 0
        assert len((folder / FILE).read_bytes().splitlines()) == 1


def changed(value):
    """Other values of the same kind, and of another."""
    if isinstance(value, str):
        return [value + "x", value[1:] if value else "x", None]
    if isinstance(value, bool) or value is None:
        return [0.0, "x"]
    if isinstance(value, int | float):
        return [value + 1, -value - 1, str(value), None, float(value) if isinstance(value, int) else int(value)]
    return [None, [*value, 1] if isinstance(value, list) else value | {"order": 3}]


def test_every_changed_field_is_refused(written):
    data, folder = written
    lines = data.splitlines()
    for number, line in enumerate(lines, start=1):
        fields = json.loads(line)
        versions = [fields | {name: other} for name, value in fields.items() for other in changed(value)]
        versions += [{k: v for k, v in fields.items() if k != name} for name in fields]
        versions.append(fields | {"more": 1})
        for version in versions:
            new = ledgerfile._canonical(version)
            assert new != line
            edited = [*lines[: number - 1], new, *lines[number:]]
            refused(folder, b"\n".join(edited) + b"\n", f"line {number}, was edited")


def test_every_changed_byte_is_refused(written):
    data, folder = written
    rng = np.random.default_rng(0)
    for position in rng.choice(len(data) - 1, size=300, replace=False):  # not the last newline: that is a crash
        other = bytes([(data[position] + int(rng.integers(1, 256))) % 256])
        refused(folder, data[:position] + other + data[position + 1 :], "was edited")


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_line_that_is_missing_twice_there_or_moved_is_refused(written, number):
    data, folder = written
    lines = data.splitlines(keepends=True)
    at = number - 1
    refused(folder, b"".join(lines[:at] + lines[at + 1 :]), f"line {number}, was edited")
    refused(folder, b"".join(lines[:number] + lines[at:]), f"line {number + 1}, was edited")
    swapped = [*lines[:at], lines[number], lines[at], *lines[number + 1 :]]
    refused(folder, b"".join(swapped), f"line {number}, was edited")
    refused(folder, b"".join([*lines[:at], b"\n", *lines[at:]]), f"line {number}, was edited")


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b",", b", "),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data + b"{}\n",
        lambda data: data + b"[" * 100_000 + b"\n",
        lambda data: data.replace(b'"order":2', b'"order":NaN'),
    ],
    ids=["line ends", "spaces", "byte order mark", "empty entry", "deep nesting", "not a number"],
)
def test_a_file_that_was_written_by_something_else_is_refused(written, edit):
    data, folder = written
    refused(folder, edit(data), "was edited")


def test_a_line_of_another_ledger_is_refused(written, tmp_path_factory):
    data, folder = written
    other = tmp_path_factory.mktemp("other")
    with opened(other) as ledger:
        fill(ledger)
    mixed = data.splitlines(keepends=True)
    mixed[3] = (other / FILE).read_bytes().splitlines(keepends=True)[3]
    refused(folder, b"".join(mixed), "line 4, was edited")


def moved(values):
    values = values.copy()
    values[7, 0] += 1e-12
    return values


@pytest.mark.parametrize(
    ("public", "values", "match"),
    [
        (PUBLIC, moved(VALUES), "the values differ"),
        (PUBLIC, VALUES[::-1], "the values differ"),
        (PUBLIC, VALUES[:-1], "the values differ"),
        (PUBLIC, VALUES.astype(np.float32), "the values differ"),
        (PUBLIC | {"columns": ["gdp", "wages"]}, VALUES, r"\(columns differs\)"),
        (PUBLIC | {"order": 3, "n_rows": 13}, VALUES, r"\(n_rows differs, order differs\)"),
        (PUBLIC | {"more": None}, VALUES, r"\(more differs\)"),
        ({}, VALUES, r"columns differs"),
    ],
)
def test_the_ledger_of_other_data_is_refused(written, public, values, match):
    data, folder = written
    with pytest.raises(DataError, match=f"belongs to other data .*{match}.*another folder"):
        opened(folder, public=public, values=values)
    assert (folder / FILE).read_bytes() == data


def test_the_ledger_of_another_client_is_refused(written):
    data, folder = written
    (folder / "Iowa.ledger.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=r"belongs to other data \(client is 'Ohio', not 'Iowa'\)"):
        opened(folder, client="Iowa")


def test_the_ledger_of_another_version_is_refused(written):
    data, folder = written
    header = json.loads(data.splitlines()[0]) | {"version": 2}
    del header["chain"]
    chain = hashlib.sha256(ledgerfile._canonical(header)).hexdigest()
    refused(folder, ledgerfile._canonical(header | {"chain": chain}) + b"\n", "version of fedvar_fast")


def test_a_ledger_can_be_open_only_once(tmp_path):
    with opened(tmp_path) as first:
        with pytest.raises(DataError, match="is open elsewhere"):
            opened(tmp_path)
        with pytest.raises(OptionError, match="opened before"):
            first.open("Ohio", PUBLIC, VALUES)
        first.record("Ohio", "still there", n_numbers=1, sensitivity=1.0, sigma=1.0)
    with opened(tmp_path) as second:
        assert len(second) == 1
    with pytest.raises(OptionError, match="opened before"):
        second.open("Ohio", PUBLIC, VALUES)


def not_open(ledger, client):
    with pytest.raises(OptionError, match=f"'{client}' is not open"):
        ledger.record(client, "x", n_numbers=1, sensitivity=1.0, sigma=1.0)
    with pytest.raises(OptionError, match=f"'{client}' is not open"):
        ledger.send(client, "x", b"", refuse_to_draw, sensitivity=1.0, sigma=1.0)


def test_a_client_that_is_not_open_releases_nothing(tmp_path):
    with opened(tmp_path, client="Iowa") as ledger:
        fill(ledger, "Iowa")
        not_open(ledger, "Ohio")
    not_open(ledger, "Iowa")
    assert len(ledger) == 4 and ledger.clients == ("Iowa",)


def test_clients_have_files_of_their_own(tmp_path):
    names = ("Ohio", "ohio 2", "../etc/passwd", "Île-de-France", "50%", "a_b", "")
    files = ("Ohio", "ohio%202", "%2E%2E%2Fetc%2Fpasswd", "%C3%8Ele-de-France", "50%25", "a_b", "")
    with FileLedger(tmp_path) as ledger:
        for name in names:
            ledger.open(name, PUBLIC, VALUES)
        for name in names:
            ledger.record(name, "x", n_numbers=1, sensitivity=1.0, sigma=1.0)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.ledger.jsonl" for name in files}
    for name in names:
        with opened(tmp_path, client=name) as ledger:
            assert ledger.clients == (name,)


def test_a_spent_budget_writes_nothing(written):
    data, folder = written
    with opened(folder) as ledger:
        ledger.limit("Ohio", 10.0)
        with pytest.raises(BudgetError, match="'Ohio'"):
            ledger.record("Ohio", "more", n_numbers=1, sensitivity=1.0, sigma=1.0)  # "nothing" left without noise
        with pytest.raises(BudgetError):
            ledger.send("Ohio", "more", b"", refuse_to_draw, sensitivity=1.0, sigma=1.0)
        again = ledger.send("Ohio", "start", b"0", refuse_to_draw, sensitivity=1.0, sigma=2.0)
        assert again.tobytes() == MESSAGE.tobytes(), "a retry costs nothing"
    assert (folder / FILE).read_bytes() == data


def test_what_was_spent_before_a_crash_counts(tmp_path):
    for left in (2, 1, 0):
        with opened(tmp_path) as ledger:
            ledger.limit("Ohio", math.sqrt(2.0))
            if left:
                ledger.record("Ohio", "x", n_numbers=1, sensitivity=1.0, sigma=1.0)
            else:
                with pytest.raises(BudgetError):
                    ledger.record("Ohio", "x", n_numbers=1, sensitivity=1.0, sigma=1.0)


class HalfWriter:
    """A file on a disk that is full in the middle of a line."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, data):
        return self.stream.write(data[: len(data) // 2])


def test_a_full_disk_releases_nothing(written):
    data, folder = written
    with opened(folder) as ledger:
        file = ledger._files["Ohio"]
        file._stream = HalfWriter(file._stream)
        with pytest.raises(OSError, match="make room on the disk"):
            ledger.send("Ohio", "more", b"", lambda: np.ones(3), sensitivity=1.0, sigma=1.0)
        assert len(ledger) == 4
        with pytest.raises(OptionError, match="is not open"):
            ledger.record("Ohio", "more", n_numbers=1, sensitivity=1.0, sigma=1.0)
        with opened(folder) as again:
            assert len(again) == 4
    assert (folder / FILE).read_bytes() == data


def test_a_failed_sync_releases_nothing_and_counts(written, monkeypatch):
    _, folder = written
    ledger = opened(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk is gone")))
        with pytest.raises(OSError, match="disk is gone"):
            ledger.send("Ohio", "more", b"", lambda: np.ones(3), sensitivity=1.0, sigma=1.0)
    assert len(ledger) == 4
    with opened(folder) as again:  # the line may be on the disk, so that it counts, and the same message may be sent
        assert len(again) == 5
        assert again.send("Ohio", "more", b"", refuse_to_draw, sensitivity=1.0, sigma=1.0).tolist() == [1.0, 1.0, 1.0]


def test_a_failed_beginning_leaves_no_lock(tmp_path):
    with pytest.raises(DataTypeError):
        opened(tmp_path, values=np.array([["text"]], dtype=object))
    with opened(tmp_path) as ledger:
        assert len(ledger) == 0


def test_impossible_arguments_are_refused(tmp_path):
    with pytest.raises(OptionError, match="no folder"):
        FileLedger(tmp_path / "nowhere")
    ledger = FileLedger(str(tmp_path))
    with pytest.raises(OptionTypeError, match="client"):
        ledger.open(3, PUBLIC, VALUES)
    for public in ({"order": np.int64(2)}, {"order": math.nan}, {"order": object()}, 3):
        with pytest.raises(OptionTypeError, match="public"):
            ledger.open("Ohio", public, VALUES)
    assert not list(tmp_path.iterdir())


def test_plain_ledgers_are_made_of_the_entries(written):
    _, folder = written
    with opened(folder) as ledger:
        again = FileLedger.from_records(ledger.to_records())
        assert type(again) is Ledger and again.releases() == ledger.releases()
        assert repr(ledger) == "FileLedger(4 releases of 1 clients)"


def test_fingerprint_depends_on_everything_but_the_memory_order(monkeypatch, tmp_path):
    one = fingerprint(VALUES, "salt")
    assert len(one) == 64 and one == fingerprint(VALUES.copy(), "salt")
    assert one == fingerprint(np.asfortranarray(VALUES), "salt")
    others = [VALUES[:-1], VALUES.T, VALUES.ravel(), VALUES.astype(np.float32), moved(VALUES), VALUES.view(np.int64)]
    prints = [fingerprint(values, "salt") for values in others]
    assert len({one, *prints, fingerprint(VALUES, "salz")}) == len(others) + 2
    np.save(tmp_path / "values.npy", VALUES)
    assert fingerprint(np.load(tmp_path / "values.npy", mmap_mode="r"), "salt") == one
    for numbers in (1, 5, 8):
        monkeypatch.setattr(ledgerfile, "_BLOCK_NUMBERS", numbers)
        assert fingerprint(VALUES, "salt") == one
    assert fingerprint(np.empty((0, 2)), "salt") != fingerprint(np.empty((0, 3)), "salt")
    for bad in (np.float64(1.0), np.array(["a", None], dtype=object)):
        with pytest.raises(DataTypeError, match="fingerprint"):
            fingerprint(bad, "salt")


def test_a_memory_map_is_not_loaded_whole(tmp_path):
    values = np.lib.format.open_memmap(tmp_path / "long.npy", mode="w+", dtype=np.float64, shape=(2**17, 16))
    tracemalloc.start()
    try:
        fingerprint(values, "salt")
        assert tracemalloc.get_traced_memory()[1] < values.nbytes / 4
    finally:
        tracemalloc.stop()


def test_the_salt_is_new_for_every_file(tmp_path):
    headers = []
    for client in ("Ohio", "Iowa"):
        with opened(tmp_path, client=client):
            headers.append(json.loads((tmp_path / f"{client}.ledger.jsonl").read_bytes()))
    one, other = headers
    assert one["salt"] != other["salt"] and one["fingerprint"] != other["fingerprint"]
    assert one["fingerprint"] == fingerprint(VALUES, one["salt"])
