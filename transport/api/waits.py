"""One caller's wait for one thing. A timer of the endpoint, so its deadline is in the Nic's time, real or virtual."""

from __future__ import annotations

from collections.abc import Callable

from transport.clock import Time
from transport.completion import Completion
from transport.timers import Timed


class Wait(Timed):
    """come: it is there; expired: its time was up before. wake: called once at either, by whoever runs the endpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.come = False
        self.expired = False
        self.wake: Callable[[], object] | None = None

    @property
    def over(self) -> bool:
        return self.come or self.expired

    def finish(self) -> None:
        """It is there."""
        self.come = True
        self._wake()

    def expire(self, now: Time) -> None:
        self.expired = True
        self._wake()

    def _wake(self) -> None:
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


class Result(Wait):
    """A wait for the completion of one request."""

    def __init__(self) -> None:
        super().__init__()
        self.completion: Completion | None = None

    def complete(self, completion: Completion) -> None:
        self.completion = completion
        self.finish()
