"""Property tests that can be repeated: their examples follow from the seed that pytest-randomly prints."""

import hypothesis
import pytest
from support import WITHOUT_TORCH

collect_ignore = ["torch"] if WITHOUT_TORCH else []


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("randomly_seed", 0))


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest, seed: int) -> None:
    if hypothesis.is_hypothesis_test(request.function):
        hypothesis.seed(seed)(request.function)
