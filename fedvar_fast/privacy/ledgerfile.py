"""A ledger that is kept in files, one for each client, and read back after a crash.

A file holds lines of JSON: a header that says to which client and to which data it belongs, then one line for each
release. Every line ends with ``chain``, the SHA-256 digest of the chain value before it and of the line itself, so
that no line can be changed, moved, added or taken out of the middle without notice.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from fedvar_fast._atomic import _sync_folder
from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.exceptions import DataError, DataTypeError, OptionError, OptionTypeError
from fedvar_fast.privacy.ledger import Ledger, Release, release_from_record, release_to_record

if sys.platform != "win32":
    import fcntl

__all__ = ["FileLedger", "fingerprint"]

_FORMAT = "fedvar_fast ledger"
_VERSION = 1
#: Numbers of a block of rows that is hashed at a time.
_BLOCK_NUMBERS = 2**17

_Entry = tuple[Release, str | None, FloatArray | None]


class FileLedger(Ledger):
    """A ledger of which every client has a file, written before a release leaves.

    Parameters
    ----------
    folder : path
        An existing folder. It is not made here: a mistyped name would begin a second ledger, and with it a second
        budget.

    Attributes
    ----------
    folder : Path
        The folder.

    Raises
    ------
    OptionError
        When there is no such folder.

    Notes
    -----
    `open` attaches the file of a client and reads it back; from then on every release of that client is on the disk
    before `record` or `send` returns, and a message that was sent before a crash is sent again bit for bit. Limits
    are not kept in the file: set them again with `limit`.

    The chain of digests shows an edited file. It has no key: it does not stop someone who computes the chain anew.
    Nor can whole lines that were cut off the end be noticed from the file alone; who must rule that out keeps the
    number of releases, or the last chain value, somewhere else.

    A file is locked as long as it is open (where the system has ``flock``). Use `close`, or the ledger as a context
    manager; what was read stays readable afterwards.

    Examples
    --------
    >>> with FileLedger("ledgers") as ledger:  # doctest: +SKIP
    ...     ledger.open("Ohio", {"columns": ["gdp"], "n_rows": len(values), "order": 2}, values)
    ...     ledger.limit("Ohio", 1.0)
    ...     message = ledger.send("Ohio", "start", point, draw, sensitivity=1.0, sigma=4.0)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._files: dict[str, _ChainedFile] = {}
        if not self.folder.is_dir():
            raise OptionError(f"There is no folder {str(self.folder)!r} for the ledger: make it first.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, client: str, public: Mapping[str, Any], values: AnyArray) -> None:
        """Attach the file of a client: a new one, or the one that belongs to these data.

        What an existing file holds is added to this ledger. An incomplete last line, which a crash left and which
        was never released, is cut off.

        Parameters
        ----------
        client : str
            The client. Its file is named after it, with the suffix ``.ledger.jsonl``.
        public : mapping
            What is public about the data and must not change, as plain JSON values: ``{"columns": [...], "n_rows":
            T, "order": p}``.
        values : array, shape (T, d)
            The client's data, of which a salted :func:`fingerprint` is kept in the header.

        Raises
        ------
        DataError
            When the file was edited, belongs to other data or another client, has another format, or is open
            elsewhere.
        DataTypeError
            When `values` is no array of rows.
        OptionError, OptionTypeError
            When the client was opened before, or an argument is of the wrong type.
        OSError
            When the file cannot be read or written.
        """
        if not isinstance(client, str):
            raise OptionTypeError(f"client of a ledger file must be text, got {client!r}.")
        if client in self._files or client in self.clients:
            raise OptionError(
                f"Client {client!r} was opened before in this ledger: open it once, or read it with a new FileLedger."
            )
        plain = _plain(public)
        file = _ChainedFile(self.folder / _file_name(client))
        try:
            lines = file.read()
            if lines:
                _check_header(file.path, lines[0], client, plain, values)
            entries = [_entry(file.path, number, line) for number, line in enumerate(lines[1:], start=2)]
            file.cut()
            if not lines:
                file.append(_header(client, plain, values))
                _sync_folder(self.folder)
        except BaseException:
            file.close()
            raise
        self._files[client] = file
        for release, digest, payload in entries:
            super()._append(release, digest, payload)

    def close(self) -> None:
        """Close all files, which gives up their locks; nothing can be released any more."""
        while self._files:
            self._files.popitem()[1].close()

    def _check(self, release: Release) -> None:
        if release.client not in self._files:
            raise OptionError(
                f"The ledger file of client {release.client!r} is not open: open the client in a FileLedger before it "
                "releases anything."
            )
        super()._check(release)

    def _append(self, release: Release, digest: str | None = None, payload: FloatArray | None = None) -> None:
        file = self._files[release.client]
        try:
            file.append(_line(release, digest, payload))
            super()._append(release, digest, payload)
        except BaseException:
            # Whether the line is on the disk is not known here; the next opening finds out.
            self._files.pop(release.client).close()
            raise


def fingerprint(values: AnyArray, salt: str) -> str:
    """SHA-256 digest of salt, shape, type and bytes of an array.

    Parameters
    ----------
    values : array, shape (T, ...)
        Numbers, read in blocks of rows: memory maps stay on disk. Missing values count with the bits they have; the
        memory order does not matter.
    salt : str
        Text without which the digest cannot be compared with that of guessed data.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    DataTypeError
        When `values` has no rows, or holds Python objects.
    """
    rows = np.asarray(values)
    if rows.ndim == 0 or rows.dtype.hasobject:
        raise DataTypeError(f"A fingerprint needs an array of rows of numbers, got {rows.dtype} of shape {rows.shape}.")
    digest = hashlib.sha256(_canonical({"salt": salt, "shape": rows.shape, "dtype": rows.dtype.str}))
    block = max(1, _BLOCK_NUMBERS // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), block):
        digest.update(rows[start : start + block].tobytes())
    return digest.hexdigest()


class _ChainedFile:
    """A locked file of JSON lines, each with the digest of all before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chain = ""
        self._complete = 0  # bytes up to the end of the last complete line
        # Unbuffered: a line is one write, and a failed one leaves nothing behind that a later close would write.
        self._stream = open(path, "a+b", buffering=0)  # noqa: SIM115
        try:
            self._lock()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"The ledger {self.path} is open elsewhere: close it there, or wait until the other fit has ended."
            ) from error

    def read(self) -> list[dict[str, Any]]:
        """All complete lines, each checked against the chain."""
        self._stream.seek(0)
        *lines, rest = self._stream.readall().split(b"\n")
        self._complete = self._stream.tell() - len(rest)
        found = []
        for number, line in enumerate(lines, start=1):
            values = _parsed(line)
            chain = None if values is None else values.pop("chain", None)
            if values is None or chain != _next_chain(self._chain, values):
                raise DataError(_edited(self.path, number))
            self._chain = chain
            found.append(values)
        return found

    def cut(self) -> None:
        """Cut off an incomplete last line."""
        if self._stream.seek(0, os.SEEK_END) > self._complete:
            self._stream.truncate(self._complete)
            os.fsync(self._stream.fileno())

    def append(self, values: Mapping[str, Any]) -> None:
        """Write a line, and return when it is on the disk."""
        chain = _next_chain(self._chain, values)
        line = _canonical({**values, "chain": chain}) + b"\n"
        if self._stream.write(line) != len(line):
            raise OSError(f"The ledger {self.path} took half a line only: make room on the disk, and open it again.")
        os.fsync(self._stream.fileno())
        self._chain = chain

    def close(self) -> None:
        self._stream.close()


def _file_name(client: str) -> str:
    """The client's name with everything but ASCII letters, digits, ``-`` and ``_`` percent-escaped."""
    name = client.encode("utf-8", "surrogatepass")
    return re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"%%%02X" % found[0][0], name).decode("ascii") + ".ledger.jsonl"


def _canonical(values: Mapping[str, Any]) -> bytes:
    """The one way to write down JSON values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The values of a line; None if it is not written as this module writes."""
    try:
        values = json.loads(line)
        return values if isinstance(values, dict) and _canonical(values) == line else None
    except (ValueError, RecursionError):
        return None


def _next_chain(chain: str, values: Mapping[str, Any]) -> str:
    return hashlib.sha256(chain.encode("ascii") + _canonical(values)).hexdigest()


def _edited(path: Path, number: int) -> str:
    return f"{path}, line {number}, was edited: restore the file as written, for it alone tells what was released."


def _plain(public: Mapping[str, Any]) -> dict[str, Any]:
    """`public` as it is read back from a file."""
    try:
        return dict(json.loads(_canonical(dict(public))))
    except (TypeError, ValueError) as error:
        raise OptionTypeError(f"public of a ledger file must hold plain JSON values: {error}.") from error


def _header(client: str, public: dict[str, Any], values: AnyArray) -> dict[str, Any]:
    salt = secrets.token_hex(16)
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "client": client,
        "public": public,
        "salt": salt,
        "fingerprint": fingerprint(values, salt),
    }


def _check_header(path: Path, header: dict[str, Any], client: str, public: dict[str, Any], values: AnyArray) -> None:
    """Refuse a file that another version wrote, or for another client or other data."""
    if (header.get("format"), header.get("version")) != (_FORMAT, _VERSION):
        raise DataError(
            f"{path} is no ledger of version {_VERSION}: read it with the version of fedvar_fast that wrote it, or "
            "give another folder."
        )
    if header["client"] != client:
        different = [f"client is {header['client']!r}, not {client!r}"]
    else:
        there = header["public"]
        names = sorted(there.keys() | public.keys())
        different = [f"{name} differs" for name in names if there.get(name, ...) != public.get(name, ...)]
    if not different and fingerprint(values, header["salt"]) != header["fingerprint"]:
        different = ["the values differ"]
    if different:
        raise DataError(
            f"The ledger {path} belongs to other data ({', '.join(different)}): open it with the data it was begun "
            "with, or give another folder for these."
        )


def _line(release: Release, digest: str | None, payload: FloatArray | None) -> dict[str, Any]:
    """What is written down of a release; the message as base64 of little-endian float64 in C order."""
    message = None if payload is None else base64.b64encode(payload.astype("<f8").tobytes()).decode("ascii")
    shape = None if payload is None else list(payload.shape)
    return release_to_record(release) | {"digest": digest, "payload": message, "shape": shape}


def _entry(path: Path, number: int, line: dict[str, Any]) -> _Entry:
    """What :func:`_line` wrote."""
    release = release_from_record(line, f"{path}, line {number},")
    if line["payload"] is None:
        return release, None, None
    numbers = np.frombuffer(base64.b64decode(line["payload"]), dtype="<f8").reshape(line["shape"])
    return release, line["digest"], numbers.astype(np.float64)
