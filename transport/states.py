"""The queue pair state machine (InfiniBand spec 10.3.1, ibv_modify_qp). All of its rules are in the tables below."""

from __future__ import annotations

from enum import IntEnum

from transport.errors import LocalProtocolError


class State(IntEnum):
    """RESET: no resources. INIT: receives may be posted. RTR: packets are accepted. RTS: work requests are sent.
    SQD: what was posted is finished, new sends are refused. ERR: everything is flushed."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    ERR = 5


#: State -> states it may move to.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.RESET: frozenset({State.INIT}),
    State.INIT: frozenset({State.RTR, State.ERR, State.RESET}),
    State.RTR: frozenset({State.RTS, State.ERR, State.RESET}),
    State.RTS: frozenset({State.SQD, State.ERR, State.RESET}),
    State.SQD: frozenset({State.RTS, State.ERR, State.RESET}),
    State.ERR: frozenset({State.RESET}),
}

#: May post sends / may post receives. In ERR a post is taken and flushed, as the verbs do.
POST_SEND: frozenset[State] = frozenset({State.RTS, State.ERR})
POST_RECV: frozenset[State] = frozenset({State.INIT, State.RTR, State.RTS, State.SQD, State.ERR})
#: Takes packets of the peer.
RECEIVES: frozenset[State] = frozenset({State.RTR, State.RTS, State.SQD})


def check_transition(old: State, new: State) -> None:
    """LocalProtocolError unless the table allows `old` -> `new`."""
    if new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(state.name for state in TRANSITIONS[old]))
        raise LocalProtocolError(f"queue pair in {old.name} cannot move to {new.name}: allowed are {allowed}")
