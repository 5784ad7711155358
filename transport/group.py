"""The ranks of a world find each other: rank 0 listens, the others come, and all can tell each other small things.

    world = World.from_environment(os.environ)
    with Group.join(world) as group:
        everyone = group.allgather({"parameters": ...})

The exchange is that of transport/bootstrap.py, a channel from every rank to rank 0. It is meant for what has to be
known before the transport can be used, not for data. Every wait has a deadline, and its error names who is missing.
"""

from __future__ import annotations

import contextlib
import ssl as tls
import time
from types import TracebackType
from typing import Any

from transport import bootstrap
from transport.bootstrap import MAX_LINE, Channel, Listener
from transport.errors import NegotiationError
from transport.launch import LOCAL, World

#: Seconds for all ranks to come.
PATIENCE = 60.0


class Group:
    """world: who this is. channels: by rank, to all others at rank 0; to rank 0 at all others. addresses: by rank, the
    IP addresses of each: those given to it, else the one it came from; only rank 0 knows them."""

    def __init__(self, world: World, channels: dict[int, Channel], addresses: list[tuple[str, ...]]) -> None:
        self.world = world
        self.channels = channels
        self.addresses = addresses

    @classmethod
    def join(
        cls, world: World, patience: float = PATIENCE, ssl: tls.SSLContext | None = None, max_line: int = MAX_LINE
    ) -> Group:
        """Wait, at most `patience` seconds, until all ranks are there. NegotiationError names those that are not.
        ssl: a context for servers at rank 0 and for clients elsewhere; max_line: longest message, bytes."""
        if world.size == 1:
            return cls(world, {}, [world.addresses or (LOCAL,)])
        return (_gather if world.rank == 0 else _report)(world, patience, ssl, max_line)

    # Together

    def allgather(self, item: Any) -> list[Any]:
        """What each rank gave, in order of rank, at every rank. item: anything that JSON can carry."""
        if self.world.rank:
            self.channels[0].send({"type": "gather", "item": item})
            items = self.channels[0].receive("gathered").get("items")
            if not isinstance(items, list) or len(items) != self.world.size:
                raise self.channels[0].refuse(f"items = {items!r:.80}: a list of {self.world.size} is allowed")
            return items
        items = [item]
        try:
            items += [channel.receive("gather").get("item") for channel in self.channels.values()]
        except NegotiationError as error:
            for channel in self.channels.values():
                with contextlib.suppress(NegotiationError):  # it may be the one that is missing
                    channel.refuse(str(error))
            raise
        for channel in self.channels.values():
            channel.send({"type": "gathered", "items": items})
        return items

    def barrier(self) -> None:
        """Go on when all ranks have come here."""
        self.allgather(None)

    # The end

    def close(self) -> None:
        """Say bye to everyone."""
        for channel in self.channels.values():
            channel.bye()

    def abort(self) -> None:
        """End without a bye: to the others this rank has died."""
        for channel in self.channels.values():
            channel.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


def _gather(world: World, patience: float, ssl: tls.SSLContext | None, max_line: int) -> Group:
    """Rank 0: take the others in."""
    deadline = time.monotonic() + patience
    channels: dict[int, Channel] = {}
    addresses: dict[int, tuple[str, ...]] = {}
    listener = Listener(LOCAL if world.master == LOCAL else "0.0.0.0", world.port, ssl=ssl)
    try:
        while len(channels) < world.size - 1:
            left = deadline - time.monotonic()
            missing = [str(rank) for rank in range(1, world.size) if rank not in channels]
            if left <= 0:
                raise NegotiationError(f"rank {', '.join(missing)} did not come within {patience:g} s")
            try:
                channel = listener.accept(left)
            except NegotiationError:
                continue  # a stranger, or one that gave up; the deadline ends this
            try:
                message = channel.receive(
                    "join", patience=max(0.0, min(bootstrap.PATIENCE, deadline - time.monotonic()))
                )
            except NegotiationError:
                channel.close()
                continue
            rank, theirs = message.get("rank"), message.get("addresses")
            if message.get("size") != world.size:
                error = channel.refuse(f"size: {world.size} at rank 0, {message.get('size')!r} at rank {rank!r}")
            elif type(rank) is not int or str(rank) not in missing:
                error = channel.refuse(f"rank = {rank!r}: missing are {', '.join(missing)}")
            elif not isinstance(theirs, list) or not all(isinstance(address, str) for address in theirs):
                error = channel.refuse(f"addresses = {theirs!r:.80} of rank {rank}: a list of texts is allowed")
            else:
                channel.peer = f"rank {rank}"
                channel.max_line = max_line
                channels[rank] = channel
                addresses[rank] = tuple(theirs)
                continue
            channel.close()
            raise error
    except NegotiationError as error:
        for channel in channels.values():
            channel.refuse(str(error))
            channel.close()
        raise
    finally:
        listener.close()
    for channel in channels.values():
        channel.send({"type": "joined"})
    addresses[0] = world.addresses or (next(iter(channels.values())).local,)
    return Group(world, dict(sorted(channels.items())), [addresses[rank] for rank in range(world.size)])


def _report(world: World, patience: float, ssl: tls.SSLContext | None, max_line: int) -> Group:
    """Any other rank: go to rank 0 and wait until all are there."""
    channel = bootstrap.connect(world.master, world.port, patience, ssl=ssl)
    try:
        channel.peer = "rank 0"
        channel.max_line = max_line
        addresses = world.addresses or (channel.local,)
        channel.send({"type": "join", "rank": world.rank, "size": world.size, "addresses": addresses})
        # Rank 0 already waits. At the end of its patience it names who is missing, and is given the time to say so.
        channel.receive("joined", patience=patience + bootstrap.PATIENCE)
    except NegotiationError:
        channel.close()
        raise
    return Group(world, {0: channel}, [])
