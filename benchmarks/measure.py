"""One measurement in a process of its own, so that no row inherits another's heap, threads or loop.

`python measure.py ARGUMENTS` (a JSON object) prints one JSON object; without arguments it prints what is installed.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import traceback
from typing import Any

from adapters import ADAPTERS
from closed_loop import callers, light, lone, threads
from held import operations, waiting
from open_loop import backlog, tail

WORKLOADS = {
    workload.__name__: workload for workload in (callers, lone, threads, light, waiting, operations, tail, backlog)
}


def measure(workload: str, adapter_name: str, collector: str = "frozen", **arguments: Any) -> None:
    """With the collector frozen, what the imports left on the heap costs no row anything."""
    adapter = ADAPTERS[adapter_name]
    for module in (adapter.extra_module, adapter.module, "torch" if workload == "tail" else None):
        if module is not None:
            importlib.import_module(module)
    if collector == "frozen":
        gc.collect()
        gc.freeze()

    async def run() -> None:
        print(json.dumps(await WORKLOADS[workload](adapter, **arguments)), flush=True)
        os._exit(0)  # what is held on purpose, and peers' threads, would keep the process

    asyncio.run(run())


def environment() -> dict[str, str]:
    """What is installed here, by distribution."""
    found = {"python": platform.python_version(), "processors": str(os.cpu_count())}
    for name in ("torch", "anyio", *(adapter.distribution for adapter in ADAPTERS.values() if adapter.distribution)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(arguments: list[str]) -> None:
    if not arguments:
        print(json.dumps(environment()))
        return
    try:
        measure(**json.loads(arguments[0]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
