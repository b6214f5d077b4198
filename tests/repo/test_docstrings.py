"""The examples in docstrings are promises, so they run."""

import doctest
import importlib
from pathlib import Path

import pytest
from support import WITHOUT_TORCH

import batchlib

HOME = Path(batchlib.__file__).parent
WITH_EXAMPLES = [
    ".".join(path.relative_to(HOME.parent).with_suffix("").parts)
    for path in sorted(HOME.rglob("*.py"))
    if ">>> " in path.read_text() and path.name != "__init__.py"
    if not (WITHOUT_TORCH and HOME / "torch" in path.parents)
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried.attempted > 0
    assert tried.failed == 0
