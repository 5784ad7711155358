"""DCTCP (RFC 8257): the window falls in proportion to the share of bytes that met CE.

Sequence numbers are not told to a control, so "one window of data" is counted in bytes: what is outstanding when the
window begins has to be acknowledged or lost before it ends. Under spraying the order in which that happens is free.

Not modelled: the receiver's CE state machine (RFC 8257 section 3.2; our ACKs carry every mark), and fast recovery's
window inflation (the engine owns what is in flight).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cython

from cc.base import Control, Environment, Parameters, parameter
from cc.signals import AckSignal, LossSignal

UNLIMITED = float(1 << 62)


@dataclass(frozen=True)
class DctcpParameters(Parameters):
    g: float = parameter(1 / 16, 1 / 1024, 1.0, "1", "weight of the newest window in alpha, the estimated mark share")
    initial_alpha: float = parameter(1.0, 0.0, 1.0, "1", "alpha before the first window; 1 halves on the first mark")
    initial_window: float = parameter(1.0, 0.01, 100.0, "BDP", "window to begin with, and to resume with after idling")
    increase: float = parameter(1.0, 0.01, 100.0, "segments", "growth per round trip in congestion avoidance")
    restart_after: float = parameter(100.0, 1.0, 1e9, "base RTTs", "idle time that voids a larger window")


class Dctcp(Control):
    """Slow start until the first mark or loss, then additive increase and a cut by alpha / 2 once per window."""

    name = "dctcp"
    source = "RFC 8257 (Data Center TCP); RFC 5681 for growth, loss, timeout and idling; Alizadeh et al., SIGCOMM 2010"
    summary = "window cut in proportion to the share of CE marks"
    needs = frozenset({"ecn"})
    Parameters = DctcpParameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        super().__init__(parameters, env)
        p: DctcpParameters = parameters
        self.alpha = p.initial_alpha
        self.ssthresh = UNLIMITED
        self._g = p.g
        self._segment = env.segment
        self._max_window = env.max_window
        self._increase = p.increase * env.segment
        self._initial = p.initial_window * env.bdp
        self._restart_after = p.restart_after * env.base_rtt
        self._acked = 0
        self._marked = 0
        self._observe = 0
        self._hold = 0
        self._halved_at = env.now - 1
        self._timeouts = 0
        self._set(self._initial)

    def on_ack(self, now: cython.longlong, ack: AckSignal) -> None:
        acked: cython.longlong = ack.acked_bytes
        grown: cython.double
        self._timeouts = 0
        self._acked += acked
        self._marked += ack.marked_bytes
        self._observe -= min(acked, self._observe)
        self._hold -= min(acked, self._hold)
        # RFC 8257 section 3.3, steps 4 to 8: at the end of an observation window.
        if self._observe == 0 and self._acked > 0:
            self.alpha += self._g * (min(1.0, self._marked / self._acked) - self.alpha)
            self._observe = ack.in_flight
            self._acked = 0
            self._marked = 0
        if self._hold > 0:
            return
        # RFC 8257 section 3.3, step 9, once per window of data.
        if ack.marked_bytes > 0:
            self._set(self.cwnd * (1.0 - self.alpha / 2.0))
            self.ssthresh = self.cwnd
            self._hold = ack.in_flight
        elif ack.window_limited:
            # RFC 8257 section 3.4 and RFC 5681 section 3.1. One ACK never more than doubles the window: late ACKs after
            # a timeout tell of data sent at an older, larger window.
            grown = min(float(acked), self.cwnd)
            if self.cwnd < self.ssthresh:
                self._set(min(self.cwnd + grown, max(self.ssthresh, self.cwnd)))
            else:
                self._set(self.cwnd + self._increase * grown / self.cwnd)

    def on_loss(self, now: cython.longlong, loss: LossSignal) -> None:
        self._observe -= min(loss.lost_bytes, self._observe)
        self._hold -= min(loss.lost_bytes, self._hold)
        # RFC 8257 section 3.5: as in RFC 5681, halve; once per round trip, since what left before the last halving
        # tells of the window before it. A trimmed packet met a full queue as surely as a dropped one.
        if loss.sent_at > self._halved_at:
            self._set(self.cwnd / 2.0)
            self.ssthresh = self.cwnd
            self._halved_at = now
            self._hold = loss.in_flight

    def on_timeout(self, now: cython.longlong) -> None:
        # RFC 5681 section 3.1: ssthresh is taken from the window before the first of several timeouts in a row.
        if self._timeouts == 0:
            self.ssthresh = max(self.cwnd / 2.0, 2.0 * self._segment)
        self._timeouts += 1
        self._set(float(self._segment))
        self._halved_at = now
        self._observe = 0
        self._hold = 0

    def on_idle(self, now: cython.longlong, idle: cython.longlong) -> None:
        # RFC 5681 section 4.1, with ssthresh remembering what was reached (RFC 2861 section 3).
        if idle > self._restart_after and self.cwnd > self._initial:
            self.ssthresh = max(self.ssthresh, 0.75 * self.cwnd)
            self._set(self._initial)

    def _set(self, cwnd: cython.double) -> None:
        self.cwnd = min(max(cwnd, float(self._segment)), float(self._max_window))
        self.window = int(self.cwnd)
