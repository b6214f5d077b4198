"""`PolicyContract`: what every policy has to keep, tried on the production core with drawn events.

A policy of any kind is put into a batcher together with drawn neighbours. Callers come, go and expire, batches end in
any order, limits change; after each event the answers of the policy and the state of the batcher are looked at. In the
end arrivals stop: everyone must be served. Then the same story is told again, later and beside a second batcher.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import hypothesis
from hypothesis import HealthCheck, Phase, stateful

from .._core._protocols import AdmissionPolicy, DispatchPolicy, Limit, OrderingPolicy
from .._core._request import Request
from ._broken import ContractBroken
from ._contract_machine import ContractMachine, Terms, kind_of
from ._inspected import picture


class PolicyContract:
    """The contract of policies as a test class: subclass it, name your policy, and pytest does the rest.

    For unittest add its TestCase as a second base. The kind of policy is found out from what `start()` gives.

    policy: an admission, ordering or dispatch policy, or a limit.
    may_raise: exceptions that are a caller's fault, which `admit` and `push` may raise.
    picklable: False for a policy that need not travel to other processes.
    repeatable: False for a policy that draws lots: the same story need not give the same batches.
    settings: Hypothesis' own; more `max_examples` look longer.

    >>> from batchlib.policies import SizeOrWait
    >>> from batchlib.testing import PolicyContract
    >>> class TestSizeOrWait(PolicyContract):
    ...     policy = SizeOrWait(max_wait=0.5)
    >>> TestSizeOrWait().test_its_description_is_immutable()
    """

    policy: ClassVar[AdmissionPolicy | OrderingPolicy | DispatchPolicy | Limit]
    may_raise: ClassVar[tuple[type[Exception], ...]] = ()
    picklable: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    settings: ClassVar[hypothesis.settings] = hypothesis.settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        phases=set(Phase) - {Phase.explain},  # which takes longer than all the rest
        report_multiple_bugs=False,
    )

    def _kind(self) -> str:
        if not hasattr(self, "policy"):
            raise TypeError(f"{type(self).__name__} names no policy: write `policy = ...` into the class")
        return kind_of(self.policy)

    def fits(self, requests: Sequence[Request]) -> bool:
        """For a limit: whether these may share a batch, said as plainly as you can. Its rooms are held to it."""
        return True

    def test_it_keeps_the_contract_whatever_happens(self) -> None:
        """Raises ContractBroken, with the shortest story that was found, if it does not."""
        kind = self._kind()
        terms = Terms(self.fits, self.may_raise, self.repeatable)
        pristine = copy.deepcopy(self.policy)  # a copy for each story: what one left behind must not excuse the next

        def machine() -> ContractMachine:
            return ContractMachine(copy.deepcopy(pristine), kind, terms)

        factory: Any = machine  # any callable will do, whatever the annotation says
        stateful.run_state_machine_as_test(factory, settings=self.settings)

    def test_its_description_is_immutable(self) -> None:
        """What `start()` makes holds the state; the description can be shared by many batchers, and pickled."""
        self._kind()
        before = picture(self.policy)
        policy: Any = self.policy
        first, second = policy.start(), policy.start()
        if picture(self.policy) != before:
            raise ContractBroken(f"a description is immutable: start() changed {self.policy!r}")
        if first is second and first is not policy:
            raise ContractBroken(f"start() makes new state for each batcher: {self.policy!r} gave {first!r} twice")
        if self.picklable:
            try:
                copied = pickle.loads(pickle.dumps(self.policy))
            except Exception as error:
                raise ContractBroken(
                    "a description can be pickled, so that batched objects that use it travel to other processes: "
                    f"{self.policy!r} cannot ({error}); set `picklable = False` if it never has to"
                ) from error
            if picture(copied) != before:
                raise ContractBroken(f"a description comes back from pickling as it was: {self.policy!r}, {copied!r}")
