"""Spans: names for what happens inside, and nothing at all outside a recording."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.trace import About, span
from labkit.trace.log import Log, merge
from labkit.trace.span import at_span, current, write_to


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log(0)
    before = write_to(log)
    yield log
    write_to(before)


def spans(log: Log) -> list[tuple[str, dict[str, object]]]:
    events = merge([log.finish()], About(1)).events
    return [(e.name, dict(e.tags)) for e in events if e.kind == "span"]


def test_outside_a_recording_a_span_does_nothing() -> None:
    assert current() is None
    with span("forward", microbatch=1) as inside:
        assert inside is None


def test_inside_a_recording_it_names_and_tags(log: Log) -> None:
    assert current() is log
    with span("step", step=2), span("forward", microbatch=1):
        pass
    assert spans(log) == [("forward", {"microbatch": 1}), ("step", {"step": 2})]


def test_an_error_passes_and_closes_its_span(log: Log) -> None:
    with pytest.raises(ZeroDivisionError), span("forward"):
        raise ZeroDivisionError
    with span("after"):
        pass
    assert [name for name, _ in spans(log)] == ["forward", "after"]


def test_a_span_that_is_open_when_the_recording_starts_or_ends_keeps_to_its_log() -> None:
    log = Log(0)
    with span("before"):
        write_to(log)
        with span("inside"):
            write_to(None)
    assert current() is None
    assert [name for name, _ in spans(log)] == ["inside"]


def test_one_span_may_be_used_again(log: Log) -> None:
    forward = span("forward")
    with forward, forward:
        pass
    assert [name for name, _ in spans(log)] == ["forward", "forward"]


def test_write_to_tells_where_spans_went_before(log: Log) -> None:
    other = Log(0)
    assert write_to(other) is log
    assert write_to(log) is other


def test_spans_that_cross_keep_their_names(log: Log) -> None:
    a, b = span("a"), span("b", step=1)
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    trace = merge([log.finish()], About(ranks=1))
    first, second = sorted((e for e in trace.events if e.kind == "span"), key=lambda e: e.end)
    assert (first.name, dict(first.tags)) == ("a", {})
    assert (second.name, dict(second.tags)) == ("b", {"step": 1})
    assert first.start <= second.start <= first.end <= second.end


def test_a_tag_that_cannot_be_told_breaks_nothing(log: Log) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError

    with span("a", what=Mute()):
        pass
    trace = merge([log.finish()], About(ranks=1))
    (told,) = [e for e in trace.events if e.kind == "span"]
    assert told.tags == {"what": "a Mute"}


def test_a_listener_hears_of_each_span_before_it_opens_recorded_or_not(log: Log) -> None:
    heard: list[tuple[str, object]] = []
    with at_span(lambda name, tags: heard.append((name, tags.get("step")))), span("step", step=1):
        write_to(None)
        with span("forward"):
            pass
    with span("step", step=2):
        pass
    assert heard == [("step", 1), ("forward", None)]


def test_a_listener_that_raises_leaves_its_span_unopened(log: Log) -> None:
    def refuse(name: str, tags: object) -> None:
        raise KeyError(name)

    with at_span(refuse), pytest.raises(KeyError), span("step", step=1):
        pass
    assert spans(log) == []
