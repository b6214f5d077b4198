"""The table of transitions: all of it is walked, on paper and by the core itself."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest
from core_bench import Bench, policies

from batchlib._core._protocols import Decision, Group
from batchlib._core._transitions import FINAL, TRANSITIONS, Event, State, after, diagram
from batchlib.policies import CostLimit

README = Path(__file__).resolve().parents[2] / "batchlib" / "_core" / "README.md"


def test_every_state_is_reachable_and_every_event_is_used() -> None:
    reached = {State.NEW}
    while (more := {target for (source, _), target in TRANSITIONS.items() if source in reached}) - reached:
        reached |= more
    assert reached == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_nothing_leaves_a_final_state() -> None:
    assert not {source for source, _ in TRANSITIONS} & FINAL
    assert {target for _, target in TRANSITIONS.items()} - FINAL == {State.WAITING, State.RUNNING}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_an_event_leads_where_the_table_says_or_is_a_bug(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert after(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            after(state, event)


class Dropping:
    def start(self) -> "Dropping":
        return self

    def decide(self, group: Group, now: float) -> Decision:
        return Decision(drop=list(group.in_order()))


class Failing(Dropping):
    def decide(self, group: Group, now: float) -> Decision:
        raise ZeroDivisionError


def walk(path: tuple[State, Event]) -> State:
    """Makes the core take one transition."""
    source, event = path
    given = {Event.SHED: {"dispatch": Dropping()}, (State.WAITING, Event.FAIL): {"dispatch": Failing()}}
    bench = Bench(policies(**given.get(path, given.get(event, {})), limits=(CostLimit(9),)))
    if source is State.NEW:
        return bench.submit(cost=9 if event is Event.ADMIT else 10).state
    request = bench.submit(cost=9, timeout=1)
    if source is State.RUNNING:
        bench.wake()
    match event:
        case Event.CANCEL:
            bench.cancel(request)
        case Event.EXPIRE:
            bench.now = 1
            bench.wake()
        case Event.CLOSE:
            bench.close(drain=False, running=True)
        case Event.REFUSE:
            bench.configure(policies(limits=(CostLimit(8),)))
        case Event.COMPLETE | Event.FAIL if source is State.RUNNING:
            bench.finish(bench.running[0], [None if event is Event.COMPLETE else OSError()])
        case _:
            bench.wake()
    return request.state


@pytest.mark.parametrize("path", TRANSITIONS, ids=lambda path: f"{path[0].value}-{path[1].value}")
def test_the_core_takes_every_transition(path: tuple[State, Event]) -> None:
    assert walk(path) is TRANSITIONS[path]


@pytest.mark.parametrize("final", sorted(FINAL, key=lambda state: state.value), ids=lambda state: state.value)
def test_the_core_never_leaves_a_final_state(final: State) -> None:
    """Whatever is done to a request that has ended."""
    dispatch = {"dispatch": Dropping()} if final is State.SHED else {}
    bench = Bench(policies(**dispatch))
    request = bench.submit(timeout=1)
    if final is State.REJECTED:
        bench.close(drain=False)
    elif final is State.CANCELLED:
        bench.cancel(request)
    elif final is State.EXPIRED:
        bench.now = 1
    bench.wake()
    if final in (State.COMPLETED, State.FAILED):
        bench.finish(bench.running[0], [1 if final is State.COMPLETED else OSError()])
    assert request.state is final
    bench.cancel(request)
    bench.advance_to(2)
    bench.wake()
    bench.close(drain=False, running=True)
    bench.drain()
    assert request.state is final


def test_a_batch_that_has_finished_is_not_finished_again() -> None:
    bench = Bench()
    bench.arrive("")
    (batch,) = bench.running
    bench.finish(batch, ["first"])
    assert bench.core.finish(batch, ["second"], bench.now) == ()
    assert bench.requests[0].outcome == "first"


def test_the_module_prints_the_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("batchlib._core.__main__")
    assert capsys.readouterr().out == ""
    sys.modules.pop("batchlib._core.__main__")
    runpy.run_module("batchlib._core", run_name="__main__")
    printed = capsys.readouterr().out
    assert printed == diagram() + "\n"
    assert "waiting --> running: dispatch" in printed


def test_the_readme_shows_the_diagram() -> None:
    assert f"```mermaid\n{diagram()}\n```" in README.read_text(), "paste what `python -m batchlib._core` prints"


def test_each_invariant_of_the_readme_names_a_test_that_exists() -> None:
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    section = README.read_text().partition("## Invariants")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line[:1].isdigit()]
    assert len(rows) >= 9
    for row in rows:
        names = [word for word in row.split("`") if word.startswith("test_")]
        assert names, row
        assert all(f"def {name}(" in tests for name in names), row
