"""What an API call raises beside the errors of transport.errors."""

from __future__ import annotations

from transport.completion import Completion, Status
from transport.errors import PolyroceError


class CompletionError(PolyroceError):
    """A request that was waited for ended with another status than SUCCESS.

    operation: the method, such as "write". completion: what the queue pair reported. peer: the peer's address, "" if
    it never had one. cause: peer, path and reason as text.
    """

    def __init__(self, operation: str, completion: Completion, peer: str) -> None:
        super().__init__(f"{operation}: {completion.status.name}: {completion.error}")
        self.operation = operation
        self.completion = completion
        self.peer = peer

    @property
    def status(self) -> Status:
        return self.completion.status

    @property
    def cause(self) -> str:
        return self.completion.error


class WaitTimeoutError(PolyroceError, TimeoutError):
    """What was waited for did not come in time. A request stays posted: its completion goes to its completion queue."""
