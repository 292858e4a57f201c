"""Files that are either written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedvar_fast.exceptions import OptionError

__all__ = ["atomic_write"]


@contextmanager
def atomic_write(
    path: str | os.PathLike[str],
    mode: str = "wb",
    *,
    encoding: str | None = None,
    newline: str | None = None,
) -> Iterator[IO[Any]]:
    """Open a file for writing that takes its name only when the block has ended well.

    The data go to a hidden temporary file in the same folder, are flushed to the disk, and the file is then
    renamed. A reader, or a crash, sees the old file or the new one, never a part. When the block raises, the
    temporary file is removed and an old file of that name stays as it was.

    Parameters
    ----------
    path : path
        The file to write; a symbolic link is followed.
    mode : {"w", "wb"}
        Text or binary.
    encoding, newline : str, optional
        As in `open`, for text.

    Yields
    ------
    file object
    """
    if mode not in ("w", "wb"):
        raise OptionError(f"mode must be 'w' or 'wb', not {mode!r}")
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.tmp")
    # Created with 0o666 and not by tempfile (0o600): the finished file has the permissions the user's umask
    # gives.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(descriptor, mode, encoding=encoding, newline=newline) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power cut (Windows does so by itself)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
