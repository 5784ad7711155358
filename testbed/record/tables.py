"""The tables of a recording: their columns, with type, unit and meaning. Times and sizes are whole numbers.

Counts only grow, from the beginning of the variant; those of `paths` begin anew with each phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["text", "int64"]


class Column(NamedTuple):
    """One column. maybe: it may be null."""

    name: str
    kind: Kind
    meaning: str
    maybe: bool = False


_VARIANT = Column("variant", "text", "name of the scenario's variant")
_PHASE = Column("phase", "text", "name of the phase")
_TIME = Column("time_ps", "int64", "when, since the first phase began")
_PAIR = (
    Column("src", "int64", "rank that the bytes come from"),
    Column("dst", "int64", "rank that they go to"),
)
_STATUS = "SUCCESS, or OUTSTANDING if the run ended before"

#: In the order of their columns in the files.
TABLES: Mapping[str, tuple[Column, ...]] = {
    "flows": (
        _VARIANT, _PHASE, *_PAIR,
        Column("messages", "int64", "from src to dst in the phase, those that were posted"),
        Column("size_bytes", "int64", "of all of them"),
        Column("start_ps", "int64", "the first was posted"),
        Column("completion_ps", "int64", "the last was complete at its poster", maybe=True),
        Column("status", "text", _STATUS),
    ),
    "messages": (
        _VARIANT, _PHASE, *_PAIR,
        Column("size_bytes", "int64", "of the message"),
        Column("start_ps", "int64", "it was posted"),
        Column("completion_ps", "int64", "it was complete at its poster", maybe=True),
        Column("status", "text", _STATUS),
    ),
    "ports": (
        _VARIANT, _TIME,
        Column("port", "text", "by the nodes that it leads from and to, such as leaf0>h3"),
        Column("queued_bytes", "int64", "waiting in the data queue"),
        Column("control_queued_bytes", "int64", "waiting in the control queue"),
        Column("sent_bytes", "int64", "sent so far, of both"),
        Column("packets", "int64", "data packets sent"),
        Column("control_packets", "int64", "control packets sent, trimmed ones too"),
        Column("marked", "int64", "data packets marked CE"),
        Column("trimmed", "int64", "data packets cut to their header"),
        Column("dropped", "int64", "data packets that there was no room for"),
        Column("control_dropped", "int64", "control packets that there was no room for"),
        Column("lost", "int64", "packets lost on the link behind the port"),
        Column("pauses", "int64", "times that PFC stopped the port"),
        Column("paused", "int64", "1 while it is stopped"),
    ),
    "paths": (
        _VARIANT, _PHASE, *_PAIR,
        Column("plane", "int64", "number of the plane"),
        Column("entropy", "int64", "UDP source port"),
        Column("packets", "int64", "data packets sent by the path"),
        Column("delivered", "int64", "data packets acknowledged"),
        Column("marked", "int64", "data packets that the acknowledgement said were marked"),
        Column("lost", "int64", "data packets taken for lost: overtaken, trimmed, or sent again after silence"),
        Column("srtt_ps", "int64", "smoothed round trip at the end of the phase", maybe=True),
    ),
    "control": (
        _VARIANT, _TIME, *_PAIR,
        Column("window_bytes", "int64", "congestion window"),
        Column("rate_bps", "int64", "pacing rate, 0 for none"),
        Column("in_flight_bytes", "int64", "sent and not acknowledged"),
        Column("srtt_ps", "int64", "smoothed round trip over all paths", maybe=True),
    ),
}  # fmt: skip
