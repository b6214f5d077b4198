"""The kit stands beside the package: what it exports, what it needs, and that nothing needs it."""

import ast
import inspect
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import batchlib
from batchlib import batched, policies, simulation, testing
from batchlib.simulation import Workload, simulate
from batchlib.testing import ContractBroken, PolicyContract, contract, strategies

HOME = Path(batchlib.__file__).parent


def test_it_has_all_of_simulation_and_its_own() -> None:
    assert set(simulation.__all__) < set(testing.__all__)
    assert len(testing.__all__) == len(set(testing.__all__))
    for name in testing.__all__:
        value = getattr(testing, name)
        assert inspect.getdoc(value) or not inspect.isclass(value), name
    assert testing.contract is contract
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testing.nothing  # noqa: B018


def test_nothing_in_the_package_imports_it() -> None:
    for path in HOME.rglob("*.py"):
        if path.parent.name != "testing":
            names = [
                ast.unparse(node)
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            assert not [name for name in names if "testing" in name], path


def test_it_needs_neither_hypothesis_nor_pytest_nor_numpy() -> None:
    script = (
        "import sys\n"
        "from batchlib import testing\n"
        "testing.virtual_time, testing.immediate, testing.override, testing.ManualExecutor\n"
        "print({'hypothesis', 'pytest', 'numpy', 'trio'} & set(sys.modules))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


SUITE = {
    "conftest.py": 'pytest_plugins = ["batchlib.testing.pytest_plugin"]\n',
    "test_mine.py": """
import unittest
from hypothesis import settings
from batchlib import batched
from batchlib.policies import EarliestDeadline, Greedy
from batchlib.testing import PolicyContract

double = batched(lambda numbers: [2 * number for number in numbers], max_wait=0.5)

class TestMine(PolicyContract):
    policy = EarliestDeadline()
    settings = settings(PolicyContract.settings, max_examples=5)

class TestOther(PolicyContract, unittest.TestCase):
    policy = Greedy()
    settings = TestMine.settings

def test_service(virtual_time, immediate):
    time = virtual_time(double)
    future = double.submit(1)
    time.advance(0.5)
    assert future.result(0) == 2
    immediate(double)
    assert double.call(2) == 4
""",
}


def test_a_users_suite(tmp_path: Path) -> None:
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout
    assert "5 passed" in run.stdout
    unit = subprocess.run([sys.executable, "-m", "unittest", "-q"], capture_output=True, text=True, cwd=tmp_path)
    assert unit.returncode == 0, unit.stderr
    assert "Ran 2 tests" in unit.stderr  # pytest's own are none of its


# ---- the built-in policies

BUILT_IN: dict[str, Any] = {
    "AimdBatchSize": policies.AimdBatchSize(0.75),
    "CostLimit": policies.CostLimit(4),
    "DeadlineAware": policies.DeadlineAware(),
    "DeadlineFeasible": policies.DeadlineFeasible(),
    "EarliestDeadline": policies.EarliestDeadline(),
    "FairShare": policies.FairShare({"x": 2.0}),
    "Fifo": policies.Fifo(),
    "Greedy": policies.Greedy(),
    "LengthAware": policies.LengthAware(),
    "MaxWaiting": policies.MaxWaiting(3, "reject"),
    "PaddedCost": policies.PaddedCost(6),
    "Priority": policies.Priority(),
    "SizeOrWait": policies.SizeOrWait(0.6),
    "TenantQuota": policies.TenantQuota(2, 3, {"x": policies.TenantQuota(0)}),
}


def linear(size: int, longest: float) -> float:
    return 0.5 + 0.25 * size


VARIANTS: dict[str, Any] = {
    "Priority, strict": policies.Priority(aging=None),
    "Priority of FairShare of EarliestDeadline": policies.Priority(
        policies.FairShare(within=policies.EarliestDeadline())
    ),
    "FairShare of Priority": policies.FairShare(within=policies.Priority()),
    "LengthAware of FairShare": policies.LengthAware(policies.FairShare(), window=4),
    "DeadlineAware, told": policies.DeadlineAware(execution_time=linear),
    "DeadlineFeasible, told": policies.DeadlineFeasible(execution_time=linear),
    "MaxWaiting that waits": policies.MaxWaiting(3),
}


def test_every_built_in_policy_is_held_to_the_contract() -> None:
    assert set(BUILT_IN) == set(policies.__all__)


def padded(self: PolicyContract, requests: Any) -> bool:
    return len(requests) * max(request.cost for request in requests) <= 6


def summed(self: PolicyContract, requests: Any) -> bool:
    return sum(request.cost for request in requests) <= 4


@pytest.mark.parametrize("which", [*BUILT_IN, *VARIANTS])
def test_a_built_in_policy_passes(which: str) -> None:
    terms = {"CostLimit": {"fits": summed}, "PaddedCost": {"fits": padded}}.get(which, {})
    few = settings(PolicyContract.settings, max_examples=20, database=None)
    policy = {**BUILT_IN, **VARIANTS}[which]
    mine = type("TestMine", (PolicyContract,), {"policy": policy, "settings": few, **terms})()
    mine.test_it_keeps_the_contract_whatever_happens()
    mine.test_its_description_is_immutable()


# ---- terms of the contract


class Lambda:
    """Cannot be pickled, and refuses with an error of its own."""

    def __init__(self, refuses: Any = lambda request: request.cost > 3) -> None:
        self.refuses = refuses

    def start(self) -> "Lambda":
        return self

    def admit(self, request: Any, room: Any, now: float) -> None:
        if self.refuses(request):
            raise LookupError("nobody knows it")


def test_a_policy_that_cannot_be_pickled_is_told_why_that_matters() -> None:
    class TestMine(PolicyContract):
        policy = Lambda()

    with pytest.raises(ContractBroken, match=r"travel to other processes: .*set `picklable = False`"):
        TestMine().test_its_description_is_immutable()

    class TestAtHome(PolicyContract):
        policy = Lambda()
        picklable = False
        may_raise = (LookupError,)
        settings = settings(PolicyContract.settings, max_examples=10, database=None)

    TestAtHome().test_its_description_is_immutable()
    TestAtHome().test_it_keeps_the_contract_whatever_happens()


class Cached(Lambda):
    def __init__(self, state: Any = None) -> None:
        self.state = state or Lambda(len)

    def start(self) -> Any:
        return self.state


class Forgetful(Lambda):
    def __reduce__(self) -> Any:
        return Forgetful, (len,)


class Counting(Lambda):
    started = 0

    def start(self) -> Any:
        self.started += 1
        return Lambda(len)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Cached(), "start\\(\\) makes new state"),
        (Forgetful(max), "comes back from pickling as it was"),
        (Counting(len), "start\\(\\) changed"),
    ],
)
def test_descriptions_that_are_none(policy: Any, rule: str) -> None:
    mine = type("TestMine", (PolicyContract,), {"policy": policy})()
    with pytest.raises(ContractBroken, match=rule):
        mine.test_its_description_is_immutable()


class Plain:
    """Nothing to compare it by: no fields, and no equality of its own."""

    def start(self) -> "Plain":
        return self

    def decide(self, group: Any, now: float) -> Any:
        raise NotImplementedError


class PlainHolder(Plain):
    def __init__(self) -> None:
        self.inside = Plain()


@pytest.mark.parametrize("policy", [Plain(), PlainHolder()])
def test_a_description_without_fields_comes_back_from_pickling(policy: Any) -> None:
    type("TestMine", (PolicyContract,), {"policy": policy})().test_its_description_is_immutable()


class StartsNothing:
    def start(self) -> None: ...


@pytest.mark.parametrize(
    ("policy", "what"),
    [(policies.Greedy, "is a class"), (3, "is without start"), (StartsNothing(), "StartsNothing object .* gave None")],
)
def test_what_is_no_policy(policy: Any, what: str) -> None:
    mine = type("TestMine", (PolicyContract,), {"policy": policy})()
    with pytest.raises(TypeError, match=f"one of admit, queue, decide, open; .*{what}"):
        mine.test_its_description_is_immutable()


def test_a_contract_without_a_policy() -> None:
    mine = type("TestMine", (PolicyContract,), {})()
    for test in (mine.test_its_description_is_immutable, mine.test_it_keeps_the_contract_whatever_happens):
        with pytest.raises(TypeError, match="TestMine names no policy"):
            test()


def test_it_can_be_a_unittest_too() -> None:
    case = type("TestMine", (PolicyContract, unittest.TestCase), {"policy": policies.Fifo()})
    assert unittest.TestLoader().loadTestsFromTestCase(case).countTestCases() == 2


# ---- strategies


@settings(max_examples=60, deadline=None)
@given(strategies.options(), strategies.workloads(), strategies.executor_models())
def test_what_is_drawn_can_be_simulated(options: dict[str, Any], workload: Workload, model: Any) -> None:
    result = simulate(options, workload, model)
    assert len(result.requests) == len(workload)
    batched(lambda items: items, **options).close()


@settings(max_examples=30, deadline=None)
@given(strategies.admissions(), strategies.orderings(), strategies.dispatches(), strategies.limits())
def test_policies_are_drawn_by_kind(admission: Any, ordering: Any, dispatch: Any, limit: Any) -> None:
    for policy, method in ((admission, "admit"), (ordering, "queue"), (dispatch, "decide"), (limit, "open")):
        assert hasattr(policy.start(), method)
