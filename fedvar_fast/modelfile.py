"""Model files: named arrays and a JSON header in one npz container, without pickle, written whole or not at all."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedvar_fast._atomic import atomic_write
from fedvar_fast._typing import AnyArray
from fedvar_fast.exceptions import ModelFileError

__all__ = ["FORMAT_VERSION", "read_model", "write_model"]

#: Raised whenever an older reader would misread a newer file.
FORMAT_VERSION = 1

_MAGIC = "fedvar_fast model"

#: What NumPy, zipfile and json raise on bytes that are not what they should be.
_DAMAGE = (
    ValueError, TypeError, KeyError, AttributeError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


def write_model(path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
    """Write a model file atomically.

    Parameters
    ----------
    path : path
    header : mapping
        JSON-able.
    arrays : mapping of name to array
        Of numbers; float64 come back bit for bit.

    Raises
    ------
    ModelFileError
        When the folder does not exist or cannot be written.
    """
    text = json.dumps({"magic": _MAGIC, "format_version": FORMAT_VERSION, **header}, allow_nan=False)
    content = {"header": np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    try:
        with atomic_write(path, "wb") as stream:
            np.savez(stream, allow_pickle=False, **content)
    except OSError as error:
        raise ModelFileError(f"cannot write the model to {os.fspath(path)!r}: {error.strerror or error}") from error


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Header and arrays of a model file.

    Raises
    ------
    ModelFileError
        When it is missing, unreadable, damaged, no model file, or of a newer format.
    """
    name = repr(os.fspath(path))
    if not Path(path).exists():
        raise ModelFileError(f"there is no model file {name}")
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {key: content[key] for key in content.files}
        header = json.loads(arrays.pop("header").tobytes().decode())
    except OSError as error:
        raise ModelFileError(f"cannot read the model file {name}: {error.strerror or error}") from error
    except _DAMAGE as error:
        raise ModelFileError(f"{name} is no model file, or a damaged one: fit and save the model again") from error
    if not isinstance(header, dict) or header.get("magic") != _MAGIC:
        raise ModelFileError(f"{name} is no model file of fedvar_fast")
    if header.get("format_version") != FORMAT_VERSION:
        raise ModelFileError(
            f"{name} has format {header.get('format_version')}, this version reads format {FORMAT_VERSION}: "
            "use the version of fedvar_fast that wrote it, or fit again"
        )
    return header, arrays
