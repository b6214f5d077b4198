"""What is public shows by an example how it is used, and the example runs."""

import doctest
import inspect
from typing import Any

import pytest
from support import WITHOUT_TORCH

import batchlib
from batchlib import policies

FUNCTIONS = {name: getattr(batchlib, name) for name in batchlib.__all__ if inspect.isfunction(getattr(batchlib, name))}
TORCH: dict[str, Any] = {}
if not WITHOUT_TORCH:
    import batchlib.torch

    TORCH = {name: getattr(batchlib.torch, name) for name in batchlib.torch.__all__ if not name.endswith("Error")}
POLICIES = {name: getattr(policies, name) for name in policies.__all__}
METHODS = {f"Batched.{name}": getattr(batchlib.Batched, name) for name in ("options", "configure")}


@pytest.mark.parametrize("name", [*FUNCTIONS, *POLICIES, *METHODS, *TORCH])
def test_its_example_runs(name: str) -> None:
    example: Any = {**FUNCTIONS, **POLICIES, **METHODS, **TORCH}[name]
    report: list[str] = []
    found = doctest.DocTestFinder(recurse=False).find(example, name, globs={})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    for test in found:
        runner.run(test, out=report.append)
    assert runner.tries > 0, "it has no example"
    assert runner.failures == 0, "".join(report)
