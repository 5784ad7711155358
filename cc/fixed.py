"""A constant window: the null control, the default of tests and the baseline of comparisons.

It reacts to nothing. What keeps a network alive under it is the size of the window alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cc.base import Control, Environment, Parameters, parameter


@dataclass(frozen=True)
class FixedParameters(Parameters):
    window_bdps: float = parameter(1.0, 0.001, 1000.0, "BDP", "window in bandwidth-delay products of the idle network")
    window_bytes: int = parameter(0, 0, 1 << 40, "bytes", "window in bytes; 0 leaves it to window_bdps")


class Fixed(Control):
    """Never moves. Whatever is asked for is brought into [1 segment, env.max_window]."""

    name = "fixed"
    source = "none: a constant"
    summary = "constant window, the null control"
    Parameters = FixedParameters

    def __init__(self, parameters: Any, env: Environment) -> None:
        super().__init__(parameters, env)
        wanted = parameters.window_bytes or int(parameters.window_bdps * env.bdp)
        self.window = min(max(wanted, env.segment), env.max_window)
