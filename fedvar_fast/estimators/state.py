"""What a fitted model keeps of one client, and how attributes become JSON and arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedvar_fast._typing import AnyArray, FloatArray
from fedvar_fast.moments import LaggedMoments
from fedvar_fast.scaling import Scaling
from fedvar_fast.timeaxis import TimeAxis

__all__ = ["ClientState", "arrays_under", "join_attribute", "moment_arrays", "moments_from", "split_attribute"]


@dataclass(frozen=True)
class ClientState:
    """What a fitted model keeps of one client.

    Attributes
    ----------
    scaling : Scaling
    moments : LaggedMoments
        Of the (winsorised) rows around their centre, in the user's units.
    time : TimeAxis
        At least the last time.
    n_rows : int
        Rows seen.
    """

    scaling: Scaling
    moments: LaggedMoments
    time: TimeAxis
    n_rows: int

    def standardized(self) -> LaggedMoments:
        """Moments of the scaled data."""
        return self.moments.standardized(self.scaling.center, self.scaling.scale)

    def recent(self) -> FloatArray:
        """The last ``p`` rows, scaled (p, d)."""
        return self.scaling.transform(self.moments.tail)


_MOMENTS = ("xx", "yx", "yy", "x_sum", "y_sum")


def moment_arrays(moments: LaggedMoments, everything: bool) -> list[tuple[str, AnyArray]]:
    """Named arrays of moments; without `everything` only what a forecast needs."""
    kept = [("tail", moments.tail), ("center", moments.center)]
    kept.append(("counts", np.array([moments.n_rows, moments.order])))
    return kept + ([(name, getattr(moments, name)) for name in _MOMENTS] if everything else [])


def moments_from(arrays: dict[str, AnyArray]) -> LaggedMoments:
    """What `moment_arrays` gave; without the sums they are empty matrices."""
    n_rows, order = (int(count) for count in arrays["counts"])
    lean = "xx" not in arrays
    sums = {name: np.zeros((0, 0)) if lean else arrays[name] for name in _MOMENTS}
    return LaggedMoments(**sums, n_rows=n_rows, order=order, center=arrays["center"], tail=arrays["tail"])


def arrays_under(arrays: dict[str, AnyArray], prefix: str) -> dict[str, AnyArray]:
    """The arrays whose name begins with a prefix, by the rest of the name."""
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def split_attribute(value: Any, name: str, attributes: dict[str, Any], arrays: dict[str, AnyArray]) -> None:
    """Put an attribute (number, text, array, or mapping of them) into JSON and arrays."""
    if isinstance(value, np.ndarray):
        arrays[f"attribute/{name}"] = value
        attributes[name] = {"kind": "array"}
    elif isinstance(value, dict):
        attributes[name] = {"kind": "mapping", "keys": list(value)}
        for i, part in enumerate(value.values()):
            split_attribute(part, f"{name}/{i}", attributes, arrays)
    else:
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, float) and not np.isfinite(plain):
            attributes[name] = {"kind": "float", "value": repr(plain)}  # which JSON cannot hold
        else:
            attributes[name] = {"kind": "plain", "value": plain}


def join_attribute(name: str, attributes: dict[str, Any], arrays: dict[str, AnyArray]) -> Any:
    """The attribute that `split_attribute` took apart."""
    entry = attributes[name]
    if entry["kind"] == "array":
        return arrays[f"attribute/{name}"]
    if entry["kind"] == "mapping":
        return {key: join_attribute(f"{name}/{i}", attributes, arrays) for i, key in enumerate(entry["keys"])}
    return float(entry["value"]) if entry["kind"] == "float" else entry["value"]
