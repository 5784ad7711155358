"""The device: one Nic and one endpoint, the driver that turns them, and whom a completion belongs to. No face yet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from transport.api.udp import AUTO, open_udp
from transport.api.waits import Result, Wait
from transport.clock import NEVER, SECOND, Time
from transport.completion import Completion
from transport.config import CONTROL_WITHOUT_ECN, EndpointConfig
from transport.driver import Driver
from transport.endpoint import Endpoint
from transport.errors import ConfigError, LocalProtocolError
from transport.states import State

if TYPE_CHECKING:
    from transport.api.queue_pair import QueuePairBase
    from transport.nic.base import Nic


#: Calls in a row that may find virtual time standing still.
_MOST_STANDSTILL = 1000


class Sink(Protocol):
    """Takes completions."""

    def add(self, completion: Completion) -> None: ...


@dataclass(slots=True)
class Request:
    """A posted request: the wr_id the caller gave, where its completion goes, and who waits for it, if anybody."""

    wr_id: int
    sink: Sink
    result: Result | None


class DeviceBase:
    """A Nic with an endpoint on it.

    nic: the address of this host to open UDP sockets on, or several, one for each plane; or any Nic, which the device
    then owns and closes. config: of the endpoint; None: the defaults, with a control that the Nic can feed. timeout:
    seconds that a wait takes at most where it names none. seed: of all chance (keys, sequence numbers, choice of
    paths); None draws it from the system. sockets: how addresses are opened: "udp" needs Linux, "dgram" only asyncio,
    "auto" is the first that the system allows. A device belongs to one thread.
    """

    def __init__(
        self, nic: Nic | str | Sequence[str] = "127.0.0.1", config: EndpointConfig | None = None, *,
        timeout: float = 30.0, seed: int | str | None = None, sockets: str = AUTO,
    ) -> None:  # fmt: skip
        self.timeout = check_timeout(timeout)
        named = config is not None
        config = config or EndpointConfig()
        if isinstance(nic, str):
            nic = [nic]
        if isinstance(nic, Sequence):
            nic, config = open_udp(nic, config, sockets)
        if not named and not nic.caps.ecn:
            config = replace(config, control=CONTROL_WITHOUT_ECN)
        try:
            address = getattr(nic, "addresses", nic.address)
            self.endpoint = Endpoint(config, address, nic.caps, random.Random(seed))
        except BaseException:
            nic.close()
            raise
        self.nic = nic
        self.driver = Driver(self.endpoint, nic)
        self.turns = 0  # how often the driver was turned
        self.closed = False
        self.queue_pairs: dict[int, QueuePairBase[object]] = {}
        self._requests: dict[int, Request] = {}
        self._serial = 0
        self._leaving: list[tuple[QueuePairBase[object], Wait]] = []
        self._alarm = NEVER
        self._standstill = 0

    def now(self) -> Time:
        """The Nic's time, picoseconds."""
        return self.nic.now()

    def due(self, timeout: float | None) -> Time:
        """The Nic's time when `patience` is over."""
        return self.nic.now() + round(self.patience(timeout) * SECOND)

    def patience(self, timeout: float | None) -> float:
        """`timeout`, or the device's own if None, in seconds."""
        return self.timeout if timeout is None else check_timeout(timeout)

    def left(self, due: Time) -> float:
        """Seconds until `due`, none if it is over."""
        return max(0.0, (due - self.nic.now()) / SECOND)

    def kick(self) -> None:
        """There may be something to send, or a deadline has moved. A face that runs by itself takes a turn soon."""

    def turn(self) -> bool:
        """Turn the driver once and hand out completions. True if packets moved."""
        self.turns += 1
        busy = self.driver.turn()
        self.deliver()
        return busy

    def deliver(self) -> None:
        """Hand out the completions that are due."""
        for completion in self.driver.completions():
            request = self._requests.pop(completion.wr_id)
            completion = completion._replace(wr_id=request.wr_id)
            if request.result is not None:
                request.result.complete(completion)
            else:
                request.sink.add(completion)
        if self._leaving:
            gone = [entry for entry in self._leaving if entry[0].connection.state == State.RESET]
            self._leaving = [entry for entry in self._leaving if entry not in gone and entry[1].deadline < NEVER]
            for _, wait in gone:
                wait.finish()

    def check_alive(self) -> None:
        """LocalProtocolError if the device was closed."""
        if self.closed:
            raise LocalProtocolError("the device was closed")

    def admit(self, request: Request) -> int:
        """The work request id that the engine shall know `request` by."""
        self.check_alive()
        self._serial += 1
        self._requests[self._serial] = request
        return self._serial

    def refuse(self, serial: int) -> None:
        """The request was not posted after all."""
        del self._requests[serial]

    def wait_gone(self, pair: QueuePairBase[object]) -> Wait:
        """A wait for the queue pair to be freed. Forgotten once it is disarmed."""
        wait = Wait()
        if pair.connection.state == State.RESET:
            wait.finish()
        else:
            self._leaving.append((pair, wait))
        return wait

    def arm(self, wait: Wait, due: Time) -> None:
        """Let `wait` expire at `due`; NEVER: not at all."""
        self.endpoint.timers.arm(wait, due)

    def next_due(self) -> Time:
        """When the driver must be turned next if no packet comes, NEVER if nothing waits. 0, or past: at once."""
        endpoint = self.endpoint
        due = endpoint.poll_timeout()
        if self.nic.caps.virtual_time and due != self._alarm:
            # Another device's `wait` may move the clock: it must stop here.
            self._alarm = due
            alarm = getattr(self.nic, "alarm", None)
            if alarm is not None and due < NEVER:
                alarm(due)
        if self.driver.unsent:  # the Nic is full, and cannot say when it is not
            return min(due, self.nic.now() + SECOND // 1000)
        return 0 if endpoint.ready.count or endpoint.deferred else due

    def move_clock(self, due: Time) -> None:
        """Let virtual time pass, to the network's next event or to `due`. It may stand still for some calls, while
        others receive; then LocalProtocolError."""
        before = self.nic.now()
        self.nic.wait(due)
        self._standstill = 0 if self.nic.now() > before else self._standstill + 1
        if self._standstill > _MOST_STANDSTILL:
            raise LocalProtocolError(
                "virtual time stands still: packets wait at another Nic of this network, and nobody receives them"
            )


def check_timeout(timeout: float) -> float:
    """Seconds that a wait may take: from 0 on, below a month."""
    if not 0 <= timeout < 1e6:
        raise ConfigError(f"timeout = {timeout!r}: allowed are seconds from 0 to below 1000000")
    return timeout
