"""Completion queues: where the completions of requests go that nobody waits for one by one."""

from __future__ import annotations

from collections import deque

from transport.api.device import DeviceBase
from transport.api.waits import Wait
from transport.completion import Completion
from transport.errors import ConfigError


class CompletionQueueBase:
    """Completions of any number of queue pairs of one device, in the order they came. Their queue depths bound it."""

    def __init__(self, device: DeviceBase) -> None:
        self.device = device
        self._queue: deque[Completion] = deque()
        self._waits: list[Wait] = []

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, completion: Completion) -> None:
        """The device's side: a completion has come."""
        self._queue.append(completion)
        while self._waits:
            self._waits.pop().finish()

    def _take(self, count: int) -> list[Completion]:
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def _wait(self) -> Wait:
        """A wait for the next completion to come."""
        wait = Wait()
        self._waits.append(wait)
        return wait

    def _leave(self, wait: Wait) -> None:
        if wait in self._waits:
            self._waits.remove(wait)


def check_count(count: int) -> None:
    if count < 1:
        raise ConfigError(f"count = {count!r}: allowed are whole numbers from 1")
