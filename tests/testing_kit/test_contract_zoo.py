"""The contract finds what is broken, and says which rule it was."""

import re
from collections.abc import Iterator, Sequence

import hypothesis
import pytest
from broken import RIGHT, ZOO
from hypothesis import Phase, settings

from batchlib.protocols import Request
from batchlib.testing import ContractBroken, PolicyContract


def at_most_four(self: PolicyContract, requests: Sequence[Request]) -> bool:
    return sum(request.cost for request in requests) <= 4


def contract(policy: object, **terms: object) -> PolicyContract:
    """As a user writes it, repeatable so that a failure here is the same everywhere."""
    small = settings(PolicyContract.settings, derandomize=True, database=None, phases=[Phase.generate])
    return type("TestMine", (PolicyContract,), {"policy": policy, "settings": small, **terms})()


def causes(error: BaseException) -> Iterator[str]:
    """The messages of an error; Hypothesis groups them where a policy does not do the same thing twice."""
    yield str(error)
    for inner in getattr(error, "exceptions", ()):
        yield from causes(inner)


@pytest.mark.parametrize("what", list(ZOO))
def test_a_broken_policy_fails(what: str) -> None:
    policy, rule = ZOO[what]
    terms = {"fits": at_most_four} if "add up" in what else {}
    with pytest.raises((ContractBroken, hypothesis.errors.Flaky)) as caught:
        contract(policy, **terms).test_it_keeps_the_contract_whatever_happens()
    assert any(re.search(rule, message) for message in causes(caught.value)), list(causes(caught.value))


@pytest.mark.parametrize("what", list(RIGHT))
def test_a_right_policy_passes(what: str) -> None:
    few = settings(PolicyContract.settings, max_examples=20, derandomize=True, database=None)
    mine = contract(RIGHT[what], settings=few)
    mine.test_it_keeps_the_contract_whatever_happens()
    mine.test_its_description_is_immutable()


def test_the_story_is_the_shortest() -> None:
    """One request that is forgotten, and nothing else."""
    policy, _ = ZOO["an order that forgets one"]
    shrinking = settings(PolicyContract.settings, derandomize=True, database=None)
    with pytest.raises(ContractBroken) as caught:
        contract(policy, settings=shrinking).test_it_keeps_the_contract_whatever_happens()
    told = "\n".join(caught.value.__notes__)
    assert told.count("Call(") == 1
    assert "Call(group='a', cost=3, timeout=None, priority=0, tenant=None, hint=None)" in told
