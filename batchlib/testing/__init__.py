"""For the tests of services that use batchlib, and of policies: all of `batchlib.simulation`, and what needs a test.

`PolicyContract` and the modules `strategies` and `contract` need Hypothesis, the module `pytest_plugin` needs pytest
(the extra `testing`). They are imported when they are first asked for; nothing else here needs either.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .. import simulation
from ..simulation import *  # noqa: F403  # whatever is public there is public here
from ._broken import ContractBroken
from ._overriding import immediate, override, virtual_time
from ._virtual_time import VirtualTime

if TYPE_CHECKING:
    from .contract import PolicyContract

__all__ = ["ContractBroken", "PolicyContract", "VirtualTime", "immediate", "override", "virtual_time"]
__all__ += simulation.__all__


def __getattr__(name: str) -> Any:
    if name == "PolicyContract":
        return importlib.import_module(f"{__name__}.contract").PolicyContract
    if name in ("contract", "strategies"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
