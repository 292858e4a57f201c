"""Estimators: one vector autoregression per client."""

from fedvar_fast.estimators.fedvar import FedVAR
from fedvar_fast.estimators.loading import load

__all__ = ["FedVAR", "load"]
