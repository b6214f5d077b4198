"""Built-in policies: three questions, one file per answer."""

from .admission._deadline_feasible import DeadlineFeasible
from .admission._max_waiting import MaxWaiting
from .admission._tenant_quota import TenantQuota
from .dispatch._aimd_batch_size import AimdBatchSize
from .dispatch._cost_limit import CostLimit
from .dispatch._deadline_aware import DeadlineAware
from .dispatch._greedy import Greedy
from .dispatch._padded_cost import PaddedCost
from .dispatch._size_or_wait import SizeOrWait
from .ordering._earliest_deadline import EarliestDeadline
from .ordering._fair_share import FairShare
from .ordering._fifo import Fifo
from .ordering._length_aware import LengthAware
from .ordering._priority import Priority

__all__ = [
    "AimdBatchSize",
    "CostLimit",
    "DeadlineAware",
    "DeadlineFeasible",
    "EarliestDeadline",
    "FairShare",
    "Fifo",
    "Greedy",
    "LengthAware",
    "MaxWaiting",
    "PaddedCost",
    "Priority",
    "SizeOrWait",
    "TenantQuota",
]
