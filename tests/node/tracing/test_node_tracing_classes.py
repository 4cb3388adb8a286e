"""Waiting and service by class of program."""

from __future__ import annotations

from test_node_tracing_book import call

from quire.core.events import ProgramStarted
from quire.core.ids import ProgramForm, ProgramId, TenantId
from quire.node.tracing.classes import OTHER, ProgramClasses


def start(
    classes: ProgramClasses, program: int, name: str, form: ProgramForm = "inferlet", kind: str = ""
) -> None:
    classes.program_started(
        ProgramStarted(
            time_s=0.0,
            program=ProgramId(program),
            tenant=TenantId("t"),
            form=form,
            name=name,
            kind=kind,
        )
    )


def test_calls_are_counted_in_the_class_of_their_program() -> None:
    classes = ProgramClasses()
    start(classes, 1, "search")
    start(classes, 2, "client-17", "session")
    start(classes, 3, "client-18", "session", "writer")
    classes.call_ended(call(1, 1, waiting_s=0.02, service_s=3.0))
    classes.call_ended(call(1, 2, arrival_s=9.0, idle_since_s=1.0, outcome="failed"))
    classes.call_ended(call(2, 1, waiting_s=1.0))
    classes.call_ended(call(3, 1))
    classes.call_ended(call(9, 1))
    found = classes.snapshot()
    assert set(found) == {"search", "session", "writer"}
    search = found["search"]
    assert search.num_calls == {"done": 1, "failed": 1}
    assert (search.waiting.num_observations, search.waiting.sum_s) == (2, 0.02)
    assert search.service.sum_s == 4.0
    assert (search.idle.num_observations, search.idle.sum_s) == (1, 8.0)
    assert found["session"].waiting.sum_s == 1.0
    assert found["session"].idle.num_observations == 0


def test_a_bounded_number_of_classes_is_told_apart() -> None:
    classes = ProgramClasses(max_classes=3)
    for program, name in enumerate(["a", "b", "c", "d", "a"]):
        start(classes, program, name)
        classes.call_ended(call(program, 1))
    numbers = {name: figures.num_calls["done"] for name, figures in classes.snapshot().items()}
    assert numbers == {"a": 2, "b": 1, OTHER: 2}


def test_a_call_that_ends_behind_its_program_is_counted() -> None:
    classes = ProgramClasses()
    start(classes, 1, "a")
    classes.program_ended(ProgramId(1), 1.0, "cancelled")
    classes.call_ended(call(1, 1, outcome="cancelled"))
    assert classes.snapshot()["a"].num_calls == {"cancelled": 1}
    assert not classes._of, "forgotten with its program"
