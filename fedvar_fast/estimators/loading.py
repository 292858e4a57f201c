"""Reading any saved model."""

from __future__ import annotations

import inspect
import os

from fedvar_fast.estimators.base import PanelVAR
from fedvar_fast.exceptions import ModelFileError
from fedvar_fast.modelfile import read_model

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> PanelVAR:
    """Read a model that `save` wrote.

    Raises
    ------
    ModelFileError
        When the file is missing, damaged, not a model, or from a newer version.
    """
    header, arrays = read_model(path)
    found = {one.__name__: one for one in _subclasses(PanelVAR)}.get(str(header.get("class")))
    if found is None:
        raise ModelFileError(f"{os.fspath(path)!r} holds a {header.get('class')!r}, which this version does not have")
    known = set(inspect.signature(found).parameters)
    try:
        unknown = set(header["params"]) - known
        if not unknown:
            return found._restore(header, arrays)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(f"{os.fspath(path)!r} is damaged: {error!r} is missing or wrong in it") from error
    raise ModelFileError(f"{os.fspath(path)!r} has options this version does not know: {sorted(unknown)}")


def _subclasses(cls: type[PanelVAR]) -> list[type[PanelVAR]]:
    return [deeper for one in cls.__subclasses__() for deeper in (one, *_subclasses(one))]
