"""NSCC, the sender control of Ultra Ethernet: what to do is decided by two bits, marked or not, delayed or not.

    not marked, delay below target    proportional increase; fast increase once a whole window met no delay
    not marked, delay above target    fair increase: the same bytes for every window
    marked, delay above target        multiplicative decrease, once per base round trip
    marked, delay below target        nothing: it is for path selection to leave that queue

Where losses or delay say that the window was far too large, quick adapt sets it to what got through. Increases are
scaled from the specification's reference network, 100 Gb/s and 12 us, by BDP (scaling a) and target (scaling b).

Where this differs from the specification, and why:
- An ACK here covers many packets: its unmarked bytes count for the increase, its marked ones for the decrease.
- The delay is the median over the paths, when there is one; its average forgets over one base round trip.
- A window that the sender did not fill does not grow (docs/congestion.md).
- Quick adapt never raises the window, and goes by losses of its own period: a loss is answered once.
- "No delay" of fast increase is a share of the base round trip: 1 us in the reference network.

Not modelled: the receiver's penalty (Rcv_Cwnd_Pend), which no signal here tells, and a base round trip that follows the
least one measured: env.base_rtt is the scale of every control here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cython

from cc.base import Control, Environment, Parameters, parameter
from cc.signals import AckSignal, LossSignal

# Table 3-82: the network that the increases are defined on.
REFERENCE_BDP = 150_000.0
REFERENCE_RTT = 12e6


@dataclass(frozen=True)
class NsccParameters(Parameters):
    target: float = parameter(1.0, 0.01, 1000.0, "base RTTs", "queueing delay aimed at; 0.75 where switches trim")
    max_window: float = parameter(1.5, 0.01, 100.0, "BDP", "largest window, and the first one")
    alpha: float = parameter(4.0, 0.0, 100.0, "segments", "proportional increase per round trip without any delay")
    fair_increase: float = parameter(5.0, 0.0, 100.0, "segments", "increase per round trip above the target, unmarked")
    fast_scale: float = parameter(0.25, 0.0, 10.0, "1", "fast increase per acknowledged byte")
    clear_delay: float = parameter(1 / 12, 0.0, 10.0, "base RTTs", "delay below which an ACK counts for fast increase")
    eta: float = parameter(0.15, 0.0, 10.0, "segments", "increase per round trip whatever the delay: fairness")
    gamma: float = parameter(0.8, 0.0, 1.0, "1", "decrease per unit of relative excess delay")
    max_md_jump: float = parameter(0.5, 0.01, 1.0, "1", "least factor of one multiplicative decrease")
    qa_gate: int = parameter(3, 0, 16, "powers of 2", "quick adapt if less than max_window / 2^gate got through")
    qa_threshold: float = parameter(
        4.0, 0.0, 1000.0, "targets", "delay that calls for it; 0, where switches trim: none"
    )
    adjust_segments: float = parameter(8.0, 1.0, 1000.0, "segments", "bytes acknowledged between two increases")


class Nscc(Control):
    """All state is in bytes and picoseconds; what is summed up is a double so that no product overflows."""

    name = "nscc"
    source = "Ultra Ethernet Specification 1.0.3, section 3.6.13, tables 3-82 and 3-83; median: arXiv 2509.07907"
    summary = "marks and delay together, quick adapt to what got through"
    needs = frozenset({"ecn"})
    Parameters = NsccParameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        super().__init__(parameters, env)
        p: NsccParameters = parameters
        segment: cython.double = float(env.segment)
        scaling_a: cython.double = env.bdp / REFERENCE_BDP
        self._segment = segment
        self._base_rtt = float(env.base_rtt)
        self._target = p.target * env.base_rtt
        self._most = min(max(p.max_window * env.bdp, segment), float(env.max_window))
        self._clear_delay = p.clear_delay * env.base_rtt
        # Bytes per byte acknowledged and picosecond below the target: scaling b over the target is 1 / REFERENCE_RTT.
        self._alpha = p.alpha * segment * scaling_a / REFERENCE_RTT
        self._fair = p.fair_increase * segment * scaling_a
        self._fast_scale = p.fast_scale * scaling_a
        self._eta = p.eta * segment * scaling_a
        self._gamma = p.gamma
        self._least_factor = p.max_md_jump
        self._adapt_below = self._most / float(1 << p.qa_gate)
        self._adapt_delay = p.qa_threshold * self._target
        self._adjust_bytes = p.adjust_segments * segment
        self.average_delay = 0.0
        self._sampled_at = env.now - env.base_rtt  # the first sample is the whole average
        self._cut_at = env.now
        self._stale = 0.0  # bytes that left before the latest quick adapt: their marks and losses were answered
        self._begin(env.now)
        self._open = False  # the first ACK begins a period
        self._restart(env.now)
        self._set(self._most)

    def on_ack(self, now: cython.longlong, ack: AckSignal) -> None:
        rtt: cython.longlong = ack.median_rtt if ack.median_rtt >= 0 else ack.rtt
        acked: cython.double = float(ack.acked_bytes)
        marked: cython.double = min(float(ack.marked_bytes), acked)
        delay: cython.double
        stale: cython.bint = self._stale > 0.0
        self._achieved += acked
        self._stale = max(self._stale - acked, 0.0)
        if rtt < 0:
            return
        delay = max(float(rtt) - self._base_rtt, 0.0)
        # Section 3.6.13.6: the average over the last base round trip.
        self.average_delay += min(1.0, float(now - self._sampled_at) / self._base_rtt) * (delay - self.average_delay)
        self._sampled_at = now
        if self._adapt(now, delay, ack.in_flight):
            return
        if acked > marked and ack.window_limited:
            # No more than one window's increase for one ACK, however late it is.
            self._grow(min(acked - marked, self.cwnd), delay)
        if marked > 0.0 and delay >= self._target and not stale:
            self._cut(now)
        self._received += acked
        self._fulfil(now, ack.window_limited)

    def on_loss(self, now: cython.longlong, loss: LossSignal) -> None:
        stale: cython.bint = self._stale > 0.0
        self._stale = max(self._stale - float(loss.lost_bytes), 0.0)
        self._fast = False
        self._clear = 0.0
        if stale:
            return
        # A lost packet takes its own bytes off the window, trimmed or not: that many the queue could not hold.
        self._lost = True
        if not self._adapt(now, 0.0, loss.in_flight):
            self._set(self.cwnd - float(loss.lost_bytes))

    def on_timeout(self, now: cython.longlong) -> None:
        # Quick adapt to nothing.
        self._stale = 0.0
        self._begin(now)
        self._restart(now)
        self._set(self._segment)

    def on_idle(self, now: cython.longlong, idle: cython.longlong) -> None:
        # What got through while nothing was offered says nothing: the next ACK begins a period.
        self._open = False
        self._restart(now)

    def on_path_change(self, now: cython.longlong) -> None:
        self._sampled_at = now - int(self._base_rtt)

    def _restart(self, now: cython.longlong) -> None:
        """Forget the increase that was being collected."""
        self._adjusted_at = now
        self._increase = 0.0  # bytes times bytes, over the window to be
        self._received = 0.0
        self._clear = 0.0  # bytes in a row that met no delay
        self._fast = False

    def _grow(self, size: cython.double, delay: cython.double) -> None:
        """`size` unmarked bytes came back after `delay` in queues."""
        if delay >= self._target:
            self._increase += self._fair * size
            self._fast = False
            self._clear = 0.0
            return
        if delay < self._clear_delay:
            self._clear += size
            if self._fast or self._clear > self.cwnd:
                self._fast = True
                self._set(self.cwnd + self._fast_scale * size)
                return
        else:
            self._fast = False
            self._clear = 0.0
        self._increase += self._alpha * size * (self._target - delay)

    def _cut(self, now: cython.longlong) -> None:
        """Multiplicative decrease by how far the average delay exceeds the target."""
        average: cython.double = self.average_delay
        self._fast = False
        self._clear = 0.0
        if average > self._target and float(now - self._cut_at) > self._base_rtt:
            self._cut_at = now
            self._set(self.cwnd * max(1.0 - self._gamma * (average - self._target) / average, self._least_factor))

    def _fulfil(self, now: cython.longlong, limited: cython.bint) -> None:
        """Put into effect what was collected, every few segments or base round trip."""
        due: cython.bint = float(now - self._adjusted_at) >= self._base_rtt
        if due or self._received > self._adjust_bytes:
            self._set(self.cwnd + self._increase / self.cwnd + (self._eta if due and limited else 0.0))
            self._increase = 0.0
            self._received = 0.0
            if due:
                self._adjusted_at = now

    def _adapt(self, now: cython.longlong, delay: cython.double, in_flight: cython.longlong) -> cython.bint:
        """At the end of a period of a base round trip and the target: whether the window became what got through."""
        adapted: cython.bint = False
        if self._open and now < self._period_end:
            return False
        if self._open and self._achieved < self._adapt_below:
            adapted = self._lost or 0.0 < self._adapt_delay < delay
        if adapted:
            self._set(min(self.cwnd, self._achieved))
            self._stale = float(in_flight)
            self._increase = 0.0
            self._received = 0.0
        self._begin(now)
        return adapted

    def _begin(self, now: cython.longlong) -> None:
        """A period of quick adapt."""
        self._open = True
        self._lost = False  # anything in it
        self._achieved = 0.0  # bytes acknowledged in it
        self._period_end = now + int(self._base_rtt + self._target)

    def _set(self, cwnd: cython.double) -> None:
        self.cwnd = min(max(cwnd, self._segment), self._most)
        self.window = int(self.cwnd)
