"""Federated vector autoregression ``A_k = A_0 (shared, low rank) + Delta_k (own, sparse)``, private where asked."""

from fedvar_fast import plot, privacy
from fedvar_fast.estimators import (
    AutoregressionVAR,
    FedVAR,
    LassoVAR,
    LeastSquaresVAR,
    LocalVAR,
    NuclearVAR,
    load,
)
from fedvar_fast.evaluation import rolling_evaluation
from fedvar_fast.lowrank import randomized_svd
from fedvar_fast.moments import LaggedMoments, lagged_moments
from fedvar_fast.panel import Panel, as_panel
from fedvar_fast.privacy import Privacy
from fedvar_fast.rank import select_rank
from fedvar_fast.readers import read_panel, write_panel
from fedvar_fast.simulate import simulate_panel
from fedvar_fast.solvers.fista import lasso_on_moments

__version__ = "0.1.0"

__all__ = [
    "AutoregressionVAR",
    "FedVAR",
    "LaggedMoments",
    "LassoVAR",
    "LeastSquaresVAR",
    "LocalVAR",
    "NuclearVAR",
    "Panel",
    "Privacy",
    "as_panel",
    "lagged_moments",
    "lasso_on_moments",
    "load",
    "plot",
    "privacy",
    "randomized_svd",
    "read_panel",
    "rolling_evaluation",
    "select_rank",
    "simulate_panel",
    "write_panel",
]
