"""Tests that need an accelerator are not collected where there is none."""

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if torch.accelerator.is_available():
        return
    gone = [item for item in items if item.get_closest_marker("gpu")]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]
