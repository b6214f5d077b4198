"""For the tests of services that use batchlib, and of policies: all of `batchlib.simulation`, and what needs a test.

`PolicyContract` and the modules `strategies` and `contract` need Hypothesis, the module `pytest_plugin` needs pytest
(the extra `testing`). They are imported when they are first asked for; nothing else here needs either.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ..simulation import (
    Affine,
    Arrival,
    BatchRecord,
    ExecutorModel,
    HeldBatch,
    ManualExecutor,
    Partition,
    RequestRecord,
    Simulation,
    Stragglers,
    Table,
    VirtualClock,
    Workload,
    clairvoyant_goodput,
    exact_mean_latency,
    inoue_bounds,
    log_normal,
    optimal_mean_latency,
    optimal_partition,
    simulate,
    universal_lower_bound,
)
from ._broken import ContractBroken
from ._overriding import immediate, override, virtual_time
from ._virtual_time import VirtualTime

if TYPE_CHECKING:
    from .contract import PolicyContract

__all__ = [
    "Affine",
    "Arrival",
    "BatchRecord",
    "ContractBroken",
    "ExecutorModel",
    "HeldBatch",
    "ManualExecutor",
    "Partition",
    "PolicyContract",
    "RequestRecord",
    "Simulation",
    "Stragglers",
    "Table",
    "VirtualClock",
    "VirtualTime",
    "Workload",
    "clairvoyant_goodput",
    "exact_mean_latency",
    "immediate",
    "inoue_bounds",
    "log_normal",
    "optimal_mean_latency",
    "optimal_partition",
    "override",
    "simulate",
    "universal_lower_bound",
    "virtual_time",
]


def __getattr__(name: str) -> Any:
    if name == "PolicyContract":
        return importlib.import_module(f"{__name__}.contract").PolicyContract
    if name in ("contract", "strategies"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
