"""When a message may be posted: starts and dependences are checked before anything runs."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.base import Message, Phase, Workload, runnable
from transport.clock import NEVER, US
from transport.errors import ConfigError


def workload(*messages: Message) -> Workload:
    return Workload(4, (Phase("only", messages),))


def after(*wanted: tuple[int, ...]) -> Workload:
    return workload(*(Message(0, 1, 10, after=before) for before in wanted))


def test_a_message_waits_for_nothing_unless_told() -> None:
    message = Message(0, 1, 10)
    assert (message.start, message.after) == (0, ())


def test_a_message_survives_json() -> None:
    message = Message(0, 1, 10, "read", 5 * US, (0, 2))
    again = Message(**json.loads(json.dumps(asdict(message))))
    assert again == message
    assert hash(again) == hash(message)


def test_starts_and_dependences_in_any_order_of_the_list_are_accepted() -> None:
    given = workload(Message(0, 1, 10, after=(1, 2)), Message(1, 2, 10, start=3 * US), Message(2, 3, 10, after=(1, 1)))
    assert runnable(given) == given


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (workload(Message(0, 1, 10, start=-1)), "phase 'only', message 0: start = -1: allowed are 0 to"),
        (workload(Message(0, 1, 10, start=NEVER)), "message 0: start = "),
        (after((), (2,)), "message 1: after = 2: allowed are 0 to 1"),
        (after((), (-1,)), "message 1: after = -1: allowed are 0 to 1"),
        (after((), (1,)), "message 1: after: it waits for itself"),
        (after((), (2,), (3,), (1,)), "message 1: after: it waits for itself, or for one that does"),
        (after((), (2,), (2,)), "message 1: after: it waits for itself, or for one that does"),
    ],
)
def test_a_message_that_could_never_be_posted_is_named(wrong: Workload, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        runnable(wrong)


@given(st.data(), st.integers(1, 30))
def test_whatever_waits_only_for_earlier_messages_is_accepted_and_turned_around_refused(
    data: st.DataObject, count: int
) -> None:
    before = [tuple(data.draw(st.sets(st.integers(0, i - 1)))) if i else () for i in range(count)]
    order = data.draw(st.permutations(range(count)))
    place = {old: new for new, old in enumerate(order)}
    shuffled = [tuple(place[j] for j in before[old]) for old in order]
    runnable(after(*shuffled))
    pairs = [(i, j) for i, wanted in enumerate(shuffled) for j in wanted]
    if pairs:
        i, j = data.draw(st.sampled_from(pairs))
        shuffled[j] = (*shuffled[j], i)
        with pytest.raises(ConfigError, match="waits for itself"):
            runnable(after(*shuffled))


def test_a_barrier_of_many_is_checked_at_once() -> None:
    sources = tuple(range(3000))
    first = [Message(0, 1, 10)] * 3000
    runnable(workload(*first, *[Message(0, 1, 10, after=sources)] * 3000))
