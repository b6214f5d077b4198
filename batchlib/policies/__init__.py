"""Built-in policies: three questions, one file per answer."""

from .admission._max_waiting import MaxWaiting
from .dispatch._cost_limit import CostLimit
from .dispatch._greedy import Greedy
from .dispatch._size_or_wait import SizeOrWait
from .ordering._fifo import Fifo

__all__ = ["CostLimit", "Fifo", "Greedy", "MaxWaiting", "SizeOrWait"]
