"""Privacy: options, noise, exact accounting, the ledger and its report."""

from fedvar_fast.privacy.accounting import epsilon, noise_multiplier
from fedvar_fast.privacy.ledger import Ledger
from fedvar_fast.privacy.mechanism import Privacy
from fedvar_fast.privacy.report import PrivacyReport

__all__ = ["Ledger", "Privacy", "PrivacyReport", "epsilon", "noise_multiplier"]
