"""Batches of tensors: how items become one, and rows become results again. Needs the extra `batchlib[torch]`."""

from ._causes import Cause
from ._check import Check, Difference, check_batching
from ._executor import TorchExecutor
from ._pack import pack
from ._pad import pad
from ._simulated import SimulatedDevice
from ._stack import stack
from ._structure import register_structure
from ._unpad import unpad
from ._warmup import Warmed, warmup
from ._worker import LaunchOrder

__all__ = [
    "Cause",
    "Check",
    "Difference",
    "LaunchOrder",
    "SimulatedDevice",
    "TorchExecutor",
    "Warmed",
    "check_batching",
    "pack",
    "pad",
    "register_structure",
    "stack",
    "unpad",
    "warmup",
]
