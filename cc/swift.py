"""Swift: additive increase below a delay target, multiplicative decrease above it, pacing below one segment.

Where this differs from the paper, and why:
- The delay is the median over the paths, when the engine has one: under spraying the latest sample tells of one path,
  and reacting to it lets the worst path dictate the window (arXiv 2509.07907).
- One window, the fabric's. The engine takes the receiver's hold time out of a round trip, so there is no separate
  endpoint delay; nor are hops counted: `base_target` stands for base target plus topology scaling.
- Targets are multiples of the idle round trip, for the paper's microseconds are those of one site.
- Delay that no cut changes, that no mark explains, and that lies beyond every flow's target (see `_unmoved`) is no
  queue of this network: a host schedules us late. Plain Swift starves there; this one takes that delay as given for a
  while and goes by losses, as Copa's competitive mode does (NSDI 2018). `unmoved_rounds` = 0 turns that off.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import cython

from cc.base import Control, Environment, Parameters, parameter
from cc.signals import AckSignal, LossSignal

# A run of decreases is judged when it has cut the window to a sixteenth, and begun anew after 12 of them: small cuts
# with growth between them are the ordinary life of a shared queue and prove nothing.
RUN_CUT = 16.0
RUN_LENGTH = 12


@dataclass(frozen=True)
class SwiftParameters(Parameters):
    base_target: float = parameter(1.5, 1.0, 1000.0, "base RTTs", "delay aimed at by a large window")
    fs_range: float = parameter(4.0, 0.0, 1000.0, "base RTTs", "flow scaling: most that is added for small windows")
    fs_min: float = parameter(0.1, 0.001, 10.0, "segments", "window at and below which all of fs_range is added")
    fs_max: float = parameter(100.0, 11.0, 1e6, "segments", "window at and above which none of it is added")
    ai: float = parameter(1.0, 0.001, 100.0, "segments", "additive increase per round trip")
    beta: float = parameter(0.8, 0.01, 1.0, "1", "decrease per unit of relative excess delay")
    max_mdf: float = parameter(0.5, 0.01, 0.9, "1", "largest decrease per round trip")
    min_window: float = parameter(0.1, 0.001, 1.0, "segments", "smallest window; below 1 the sender is paced")
    retx_reset: int = parameter(5, 1, 1000, "timeouts", "timeouts in a row that reset the window to min_window")
    unmoved_rounds: int = parameter(256, 0, 1 << 20, "round trips", "how long delay that no cut changed is tolerated")


class Swift(Control):
    """State in segments and picoseconds; names as in the paper's algorithm 1."""

    name = "swift"
    source = "Kumar et al., Swift: Delay is Simple and Effective, SIGCOMM 2020; median of paths as in arXiv 2509.07907"
    summary = "delay target with flow scaling, paced below one segment"
    Parameters = SwiftParameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        super().__init__(parameters, env)
        p: SwiftParameters = parameters
        self._segment = env.segment
        self._line_rate = env.rate
        self._max_window = env.max_window
        self._base_target = p.base_target * env.base_rtt
        self._fs_range = p.fs_range * env.base_rtt
        self._fs_alpha = self._fs_range / (1.0 / sqrt(p.fs_min) - 1.0 / sqrt(p.fs_max))
        self._fs_beta = self._fs_alpha / sqrt(p.fs_max)
        self._ai = p.ai
        self._beta = p.beta
        self._max_mdf = p.max_mdf
        self._min = p.min_window
        self._retx_reset = p.retx_reset
        self._unmoved_rounds = p.unmoved_rounds
        self._rtt = env.base_rtt
        self._last_decrease = env.now
        self._retransmits = 0
        self._given = 0.0
        self._given_since = env.now
        self._run = 0
        self._run_cwnd = 0.0
        self._run_delay = 0
        self._set(self.window / env.segment)

    def on_ack(self, now: cython.longlong, ack: AckSignal) -> None:
        rtt: cython.longlong = ack.median_rtt if ack.median_rtt >= 0 else ack.rtt
        delay: cython.double
        target: cython.double
        segments: cython.double
        self._retransmits = 0
        if rtt < 0:
            return
        self._rtt = max(rtt, 1)
        delay = float(self._rtt)
        if self._given > 0.0 and float(now - self._given_since) > self._unmoved_rounds * self._given:
            self._given = 0.0
        if ack.marked_bytes > 0 or ack.marked_fraction > 0.0:
            self._given = 0.0
            self._run = 0
        target = self.target()
        if delay < target:
            if now - self._last_decrease > 2 * self._run_delay:
                self._run = 0
            # A paced sender is held by its rate, never by its window.
            if ack.window_limited or self.cwnd < 1.0:
                # No more than one round trip's increase for one ACK, however many segments it covers.
                segments = min(ack.acked_bytes / self._segment, max(self.cwnd, 1.0))
                self._set(self.cwnd + self._ai * segments / max(self.cwnd, 1.0))
        elif now - self._last_decrease >= self._rtt:
            self._last_decrease = now
            if self._unmoved_rounds > 0 and self._unmoved(delay):
                self._given = 2.0 * self._run_delay
                self._given_since = now
                self._set(self._run_cwnd)
            else:
                self._set(self.cwnd * max(1.0 - self._beta * (delay - target) / delay, 1.0 - self._max_mdf))
        else:
            self._set(self.cwnd)

    def on_loss(self, now: cython.longlong, loss: LossSignal) -> None:
        self._retransmits = 0
        # Once per round trip: what left before the last decrease tells of the window before it.
        if loss.sent_at >= self._last_decrease:
            self._last_decrease = now
            self._set(self.cwnd * (1.0 - self._max_mdf))

    def on_timeout(self, now: cython.longlong) -> None:
        self._retransmits += 1
        if self._retransmits >= self._retx_reset:
            self._last_decrease = now
            self._set(self._min)
        elif now - self._last_decrease >= self._rtt:
            self._last_decrease = now
            self._set(self.cwnd * (1.0 - self._max_mdf))

    def on_idle(self, now: cython.longlong, idle: cython.longlong) -> None:
        # The window is kept, as in the paper: the first round trip's delay corrects it. A run of decreases that could
        # not be judged proved nothing, and its queue is gone: begin as before it.
        if self._run > 0 and idle > self._run_delay:
            self._run = 0
            self._set(self._run_cwnd)

    def target(self) -> cython.double:
        """The delay aimed at now, picoseconds: base_target + clamp(alpha / sqrt(W) - alpha / sqrt(fs_max), 0, fs_range)
        (flow scaling, section 3.5), and never less than the delay taken as given."""
        scaled: cython.double = self._fs_alpha / sqrt(self.cwnd) - self._fs_beta
        return max(self._base_target + min(max(scaled, 0.0), self._fs_range), self._given)

    def _unmoved(self, delay: cython.double) -> cython.bint:
        """Count a decrease into the current run and say whether the run has shown that delay does not follow windows.

        Where the queue is ours and our like's, a sixteenth of the windows leaves far less than a third of the delay,
        and none of us lives with more than base_target + fs_range. Delay above that, and above a third of its highest,
        is not made by windows: the caller gives the window back and makes twice the run's highest delay the least
        target for `unmoved_rounds` of that time. Then it is tested again. A mark breaks the run: it proves a queue.
        """
        if delay <= self._base_target + self._fs_range:
            self._run = 0
            return False
        if self._run == 0:
            self._run_cwnd = self.cwnd
            self._run_delay = 0
        self._run += 1
        self._run_delay = max(self._run_delay, self._rtt)
        if self.cwnd * RUN_CUT <= self._run_cwnd or (self._run >= RUN_LENGTH and self.cwnd <= self._min):
            self._run = 0
            return 3.0 * delay > float(self._run_delay)
        if self._run >= RUN_LENGTH:
            self._run = 0
        return False

    def _set(self, cwnd: cython.double) -> None:
        self.cwnd = min(max(cwnd, self._min), self._max_window / self._segment)
        if self.cwnd >= 1.0:
            self.window = int(self.cwnd * self._segment)
            self.rate = 0
        else:
            # Section 3.4: one segment every rtt / W.
            self.window = self._segment
            self.rate = int(min(max(self.cwnd * self._segment * 8e12 / self._rtt, 1.0), float(self._line_rate)))
