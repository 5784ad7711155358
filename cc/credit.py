"""Receiver credits, as a policy: how much goes unsolicited, and how the receiver grants. The mechanism is the engine's
(transport/credits.py); what a sender may have outstanding beside its credit is bounded by a constant window.

After EQDS (Olteanu et al., An edge-queued datagram service for all datacenter traffic, NSDI 2022) and the receiver
control of Ultra Ethernet (UEC 1.0 section 3.6.14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cc.base import Control, Environment, Parameters, parameter


@dataclass(frozen=True)
class CreditParameters(Parameters):
    window_bdps: float = parameter(2.0, 0.1, 100.0, "BDP", "most bytes that a sender has outstanding")
    unsolicited_bdps: float = parameter(1.0, 0.0, 2.0, "BDP", "bytes that may be sent without credit after a pause")
    share: float = parameter(0.998, 0.1, 1.0, "share", "of its line rate that a receiver grants")
    quantum: int = parameter(1, 1, 64, "segments", "granted to one sender at a time")
    outstanding_bdps: float = parameter(1.5, 0.5, 100.0, "BDP", "most bytes granted to one sender and not arrived")
    shortest_first: bool = parameter(False, False, True, "", "serve who wants least, else who was served least")


class CreditControl(Control):
    """Grants decide; the window is a constant."""

    name = "credit"
    source = "EQDS, NSDI 2022; UEC 1.0 section 3.6.14"
    summary = "receiver credits at line rate, least served first"
    credits = True
    Parameters = CreditParameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        super().__init__(parameters, env)
        self.window = min(max(int(parameters.window_bdps * env.bdp), 4 * env.segment), env.max_window)
        self.first = int(parameters.unsolicited_bdps * env.bdp)
        self.parameters = parameters
