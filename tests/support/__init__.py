"""What the tests share: a clock that is moved by hand, a function that is held by hand."""

from .clock import VirtualClock
from .held import Held, waiting_for
from .torchless import WITHOUT_TORCH

__all__ = ["WITHOUT_TORCH", "Held", "VirtualClock", "waiting_for"]
