"""Types shared by the whole package."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AnyArray", "FloatArray", "IntArray", "Seed"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intc]
AnyArray = npt.NDArray[Any]
#: What scikit-learn calls a random state, in NumPy's newer form.
Seed = int | np.random.Generator | None
