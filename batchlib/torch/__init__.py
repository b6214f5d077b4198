"""Batches of tensors: how items become one, and rows become results again. Needs the extra `batchlib[torch]`."""

from .checking._causes import Cause
from .checking._check import Check, Difference, check_batching
from .collation._pack import pack
from .collation._pad import pad
from .collation._stack import stack
from .collation._structure import register_structure
from .collation._unpad import unpad
from .device._simulated import SimulatedDevice
from .executor._executor import TorchExecutor
from .executor._warmup import Warmed, warmup
from .executor._worker import LaunchOrder

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
