"""Tuning: the numbers of the deciders that no policy names. The defaults are those of the manual; a simulation takes
others, so that in a few hundred calls it sees what a fleet sees in a day.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.decide.attempt_budget import AttemptBudgetSettings
from gateway.decide.balance import BalanceSettings
from gateway.decide.cancel_cap import CancelCapSettings
from gateway.decide.hedge import HedgeSettings
from gateway.decide.limit_settings import LimitSettings
from gateway.decide.pacer import PacerSettings


@dataclass(frozen=True, slots=True)
class Tuning:
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    budget: AttemptBudgetSettings = field(default_factory=AttemptBudgetSettings)
    cancels: CancelCapSettings = field(default_factory=CancelCapSettings)
    hedge: HedgeSettings = field(default_factory=HedgeSettings)
    limit: LimitSettings = field(default_factory=LimitSettings)
    pacer: PacerSettings = field(default_factory=PacerSettings)
