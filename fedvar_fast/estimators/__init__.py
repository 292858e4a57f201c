"""Estimators: one vector autoregression per client."""

from fedvar_fast.estimators.fedvar import FedVAR
from fedvar_fast.estimators.loading import load
from fedvar_fast.estimators.local import AutoregressionVAR, LassoVAR, LeastSquaresVAR, LocalVAR, NuclearVAR

__all__ = ["AutoregressionVAR", "FedVAR", "LassoVAR", "LeastSquaresVAR", "LocalVAR", "NuclearVAR", "load"]
