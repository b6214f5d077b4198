"""Every ordering, in whatever nesting, does what its definition says, over several groups and any events."""

from typing import Any

import hypothesis
import hypothesis.stateful as stateful
from hypothesis import settings
from hypothesis import strategies as st
from ordering_reference import pairs_with_runs

from batchlib._core._request import Request
from batchlib._core._transitions import State

some_group = st.sampled_from("abc")


class OrderingMachine(stateful.RuleBasedStateMachine):
    @stateful.initialize(pair=pairs_with_runs)
    def begin(self, pair: Any) -> None:
        policy, reference = pair
        self.ordering = policy.start()
        self.has_runs = getattr(policy, "needs_runs", False)
        self.reference = reference()
        self.queues: dict[str, Any] = {}
        self.ranks: dict[str, Any] = {}
        self.waiting: dict[str, list[Request]] = {}
        self.now = 0.0
        self.sequence = 0

    # ---- events

    @stateful.rule(passed=st.integers(1, 8))
    def pass_time(self, passed: int) -> None:
        self.now += passed / 2

    @stateful.rule(
        group=some_group,
        priority=st.sampled_from([0, 0, 1, 2.0, -1, 0.5, float("inf"), float("-inf")]),
        tenants=st.text("xyz", min_size=1, max_size=4) | st.just([None]),
        cost=st.integers(0, 4),
        timeout=st.none() | st.integers(0, 9),
        hint=st.none() | st.integers(0, 9),
    )
    def push(self, group: str, tenants: Any, timeout: Any, hint: Any, **fields: Any) -> None:
        for tenant in tenants:
            self.sequence += 1
            request = Request((), group, self.now)
            request.sequence, request.state, request.tenant = self.sequence, State.WAITING, tenant
            request.deadline = None if timeout is None else self.now + timeout
            request.hint = None if hint is None else self.now + hint
            request.priority, request.cost = fields["priority"], fields["cost"]
            if group not in self.queues:
                self.queues[group] = self.ordering.queue()
            self.queues[group].push(request)
            self.reference.push(group, request)
            self.waiting.setdefault(group, []).append(request)
        self.ranks.pop(group, None)

    @stateful.precondition(lambda self: self.queues)
    @stateful.rule(size=st.integers(1, 5))
    def dispatch_the_first(self, size: int) -> None:
        """What the core does: of the group of the smallest rank, the first in order."""
        group = min(self.queues, key=lambda each: self.queues[each].rank())
        assert group == min(self.queues, key=self.reference.rank)
        order = list(self.queues[group].in_order())
        self.dispatch(group, order[:size])
        if order[size:] and not self.has_runs:  # whose order follows from who is first by then
            assert list(self.queues[group].in_order()) == order[size:]

    @stateful.precondition(lambda self: self.queues)
    @stateful.rule(group=some_group, which=st.data())
    def dispatch_any(self, group: str, which: Any) -> None:
        """A dispatch policy may choose as it likes."""
        if group in self.queues:
            chosen = which.draw(st.lists(st.sampled_from(self.waiting[group]), unique_by=id, min_size=1, max_size=5))
            self.dispatch(group, chosen)

    def dispatch(self, group: str, requests: list[Request]) -> None:
        for request in requests:
            request.state = State.RUNNING
        self.queues[group].dispatched(requests, self.now)
        self.reference.dispatched(group, requests)
        self.gone(group, requests)

    @stateful.precondition(lambda self: self.queues)
    @stateful.rule(group=some_group, which=st.integers(0), everybody=st.booleans())
    def remove(self, group: str, which: int, everybody: bool) -> None:
        waiting = self.waiting.get(group, [])
        for request in list(waiting) if everybody else waiting[which % max(1, len(waiting)) :][:1]:
            request.state = State.CANCELLED
            self.queues[group].removed(request)
            self.reference.removed(group, request)
            self.gone(group, [request])

    def gone(self, group: str, requests: list[Request]) -> None:
        self.waiting[group] = [each for each in self.waiting[group] if each not in requests]
        if not self.waiting[group]:
            assert list(self.queues[group].in_order()) == []
            del self.queues[group], self.waiting[group]
            self.ranks.pop(group, None)

    # ---- what holds after each

    @stateful.invariant()
    def the_order_is_that_of_the_definition(self) -> None:
        for group, queue in getattr(self, "queues", {}).items():
            order = self.reference.order(group)
            assert list(queue.in_order()) == order
            assert sorted(map(id, order)) == sorted(map(id, self.waiting[group]))

    @stateful.invariant()
    def looking_changes_nothing(self) -> None:
        for queue in getattr(self, "queues", {}).values():
            one, other = queue.in_order(), queue.in_order()
            pairs = []
            for first in one:
                pairs.append((first, next(other)))
                queue.rank()
            assert all(first is second for first, second in pairs)
            assert next(other, None) is None

    @stateful.invariant()
    def only_a_push_makes_a_rank_smaller(self) -> None:
        for group, queue in getattr(self, "queues", {}).items():
            rank = queue.rank()
            assert group not in self.ranks or not rank < self.ranks[group]
            self.ranks[group] = rank

    @stateful.invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        if hasattr(self, "queues") and not self.queues:
            assert getattr(self.ordering, "tenants_tracked", 0) == 0
            assert not getattr(self.ordering, "_classes", None)
            assert not getattr(self.ordering, "_idle", None)


def test_the_orderings_do_what_their_definitions_say(seed: int) -> None:
    hypothesis.seed(seed)(OrderingMachine)
    stateful.run_state_machine_as_test(
        OrderingMachine, settings=settings(max_examples=200, stateful_step_count=30, deadline=None, database=None)
    )
