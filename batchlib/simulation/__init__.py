"""Time in your hands: a clock and an executor for tests, a simulator of the production core, and references for it.

Only `exact_mean_latency`, `optimal_mean_latency` and `clairvoyant_goodput` need NumPy (the extra `simulation`).
"""

from ._clock import VirtualClock
from ._executor_models import Affine, ExecutorModel, Stragglers, Table
from ._manual import HeldBatch, ManualExecutor
from ._references import (
    Partition,
    clairvoyant_goodput,
    exact_mean_latency,
    inoue_bounds,
    optimal_mean_latency,
    optimal_partition,
    universal_lower_bound,
)
from ._results import BatchRecord, RequestRecord, Simulation
from ._simulate import simulate
from ._workloads import Arrival, Workload, log_normal

__all__ = [
    "Affine",
    "Arrival",
    "BatchRecord",
    "ExecutorModel",
    "HeldBatch",
    "ManualExecutor",
    "Partition",
    "RequestRecord",
    "Simulation",
    "Stragglers",
    "Table",
    "VirtualClock",
    "Workload",
    "clairvoyant_goodput",
    "exact_mean_latency",
    "inoue_bounds",
    "log_normal",
    "optimal_mean_latency",
    "optimal_partition",
    "simulate",
    "universal_lower_bound",
]
