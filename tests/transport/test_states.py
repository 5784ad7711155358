"""The queue pair's state table, and what each state lets a user and a peer do."""

from __future__ import annotations

from itertools import product

import pytest

from tests.helpers import Pair, forge
from transport.completion import Status
from transport.connection import Connection
from transport.dormant import awaken
from transport.errors import LocalProtocolError, QueueFullError
from transport.placement import Access
from transport.states import POST_RECV, POST_SEND, RECEIVES, TRANSITIONS, State, check_transition

WRITABLE = Access.LOCAL_WRITE | Access.REMOTE_WRITE

ALLOWED = {
    ("RESET", "INIT"),
    ("INIT", "RTR"), ("INIT", "ERR"), ("INIT", "RESET"),
    ("RTR", "RTS"), ("RTR", "ERR"), ("RTR", "RESET"),
    ("RTS", "SQD"), ("RTS", "ERR"), ("RTS", "RESET"),
    ("SQD", "RTS"), ("SQD", "ERR"), ("SQD", "RESET"),
    ("ERR", "RESET"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), list(product(State, State)), ids=lambda state: state.name)
def test_each_pair_of_states_is_allowed_or_refused_as_in_the_verbs(old, new):
    if (old.name, new.name) in ALLOWED:
        check_transition(old, new)
    else:
        with pytest.raises(LocalProtocolError, match=f"{old.name} cannot move to {new.name}"):
            check_transition(old, new)


def test_every_state_can_be_reached_and_left():
    assert set(TRANSITIONS) == set(State)
    assert {new for allowed in TRANSITIONS.values() for new in allowed} == set(State)
    assert all(TRANSITIONS.values())


def in_state(state: State) -> tuple[Pair, Connection, Connection]:
    """A pair whose first connection is in `state`, by the ways that lead there."""
    pair = Pair(control="fixed")
    if state in (State.INIT, State.RESET):
        domain = pair.alice.endpoint.protection_domain()
        ours = pair.alice.endpoint.create_connection(domain, pair.now)
        theirs = pair.bob.endpoint.create_connection(pair.bob.endpoint.protection_domain(), pair.now)
        theirs.connect(pair.now, ours.parameters)
        awaken(ours)
        awaken(theirs)
        if state == State.RESET:
            ours.close(pair.now)
    else:
        ours, theirs = pair.connect()
        if state == State.RTR:
            ours.state = State.RTR  # connect passes through it
        elif state == State.SQD:
            ours.close(pair.now)
        elif state == State.ERR:
            ours.fail(pair.now, Status.FATAL_ERR, "made to fail", None)
    assert ours.state == state
    return pair, ours, theirs


SENDS = {
    "write": lambda qp, now: qp.post_write(now, 7, b"x", 0, 0),
    "send": lambda qp, now: qp.post_send(now, 7, b"x"),
    "read": lambda qp, now: qp.post_read(now, 7, bytearray(1), 0, 0),
    "fetch_add": lambda qp, now: qp.post_fetch_add(now, 7, 0, 0, 1),
    "cmp_swap": lambda qp, now: qp.post_cmp_swap(now, 7, 0, 0, 0, 1),
}


@pytest.mark.parametrize("operation", SENDS)
@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_sends_are_taken_in_rts_and_flushed_in_err(state, operation):
    pair, ours, _ = in_state(state)
    if state not in (State.RTS, State.ERR):
        with pytest.raises(LocalProtocolError, match=f"is in {state.name}: sends cannot be posted"):
            SENDS[operation](ours, pair.now)
        assert not ours.sender.queue
        return
    SENDS[operation](ours, pair.now)
    assert len(ours.sender.queue) == (state == State.RTS)
    completion = pair.alice.endpoint.poll_completion()
    if state == State.RTS:
        assert completion is None
    else:
        assert (completion.wr_id, completion.status) == (7, Status.WR_FLUSH_ERR)
        assert "made to fail" in completion.error


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_receives_are_taken_everywhere_but_in_reset(state):
    pair, ours, _ = in_state(state)
    if state == State.RESET:
        with pytest.raises(LocalProtocolError, match="is in RESET: receives cannot be posted"):
            ours.post_recv(pair.now, 8, bytearray(4))
        return
    ours.post_recv(pair.now, 8, bytearray(4))
    completion = pair.alice.endpoint.poll_completion()
    if state == State.ERR:
        assert (completion.wr_id, completion.status) == (8, Status.WR_FLUSH_ERR)
    else:
        assert completion is None


def test_the_posting_tables_say_what_connections_do():
    assert {State.RTS, State.ERR} == POST_SEND
    assert set(State) - {State.RESET} == POST_RECV
    assert {State.RTR, State.RTS, State.SQD} == RECEIVES


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
def test_data_is_placed_in_rtr_rts_and_sqd_only(state):
    pair, ours, theirs = in_state(state)
    target = bytearray(4)
    region = ours.context.domain.register(target, WRITABLE)
    pair.alice.endpoint.receive(forge(theirs, theirs.sender.next, b"data", region.rkey, region.address), pair.now)
    counters = pair.alice.endpoint.counters()
    dropped = counters["dropped_wrong_state"] + counters["dropped_wrong_address"] + counters["dropped_unknown_qpn"]
    if state in RECEIVES:
        assert target == b"data"
        assert dropped == 0
    else:
        assert target == bytes(4)
        assert dropped == 1


def test_a_receive_posted_before_connect_is_used_after_it():
    pair, ours, theirs = in_state(State.INIT)
    buffer = bytearray(300)
    ours.post_recv(pair.now, 8, buffer)
    ours.connect(pair.now, theirs.parameters)
    theirs.post_send(pair.now, 1, b"\x07" * 300)
    pair.drive_messages(1, pair.bob)
    assert [item.wr_id for item in pair.alice.completions] == [8]
    assert buffer == b"\x07" * 300


def test_receives_posted_before_connect_keep_to_the_depth():
    pair = Pair(rq_depth=2)
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    ours.post_recv(pair.now, 0, bytearray(1))
    ours.post_recv(pair.now, 1, bytearray(1))
    with pytest.raises(QueueFullError, match="rq_depth = 2"):
        ours.post_recv(pair.now, 2, bytearray(1))


def test_closing_before_connect_flushes_the_receives():
    pair, ours, _ = in_state(State.INIT)
    ours.post_recv(pair.now, 8, bytearray(4))
    ours.close(pair.now)
    assert ours.state == State.RESET
    completion = pair.alice.endpoint.poll_completion()
    assert (completion.wr_id, completion.status) == (8, Status.WR_FLUSH_ERR)
    assert pair.alice.endpoint.poll_completion() is None


def test_connect_is_refused_outside_init():
    pair, ours, theirs = in_state(State.RTS)
    with pytest.raises(LocalProtocolError, match="connect needs INIT"):
        ours.connect(pair.now, theirs.parameters)
