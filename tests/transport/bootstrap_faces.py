"""The two faces of the bootstrap behind one interface, for tests that run on both: each call is a whole side."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from transport import bootstrap, bootstrap_aio
from transport.config import ConnectionParameters

PARAMETERS = ConnectionParameters(
    version=2, addresses=("7f000001",), qpn=5, tag=6, dsn=7, csn=8, mtu=4096, window=2048, max_rd_atomic=16, inline=256,
    icrc="id0", control="dctcp", mode="multipath",
)  # fmt: skip


class Blocking:
    """Sides of an exchange that wait."""

    @staticmethod
    def client(port: int, patience: float, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Any:
        """Connect, exchange parameters, say that it worked, hear that it did. Returns what the peer told."""
        with bootstrap.connect(host, port, patience, ssl=context) as channel:
            channel.patience = patience
            return _talk(channel)

    @staticmethod
    def server(
        told: Callable[[int], None], patience: float, context: ssl.SSLContext | None = None, tries: int = 1
    ) -> Any:  # fmt: skip
        """Listen, tell the port, then as a client. tries: of so many that come, all but the last may fail."""
        listener = bootstrap.Listener("127.0.0.1", 0, ssl=context)
        try:
            told(listener.port)
            for left in reversed(range(tries)):
                try:
                    with listener.accept(2 * patience) as channel:
                        channel.patience = patience
                        return _talk(channel)
                except bootstrap.NegotiationError:
                    if not left:
                        raise
        finally:
            listener.close()


def _talk(channel: bootstrap.Channel) -> Any:
    [theirs], more = channel.exchange([PARAMETERS], data="text")
    channel.send({"type": "connected"})
    channel.receive("connected")
    return theirs, more


class Asyncio:
    """Sides of an exchange in an event loop."""

    @staticmethod
    def client(port: int, patience: float, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Any:
        async def side() -> Any:
            channel = await bootstrap_aio.connect(host, port, patience, ssl=context)
            channel.patience = patience
            return await _talk_aio(channel)

        return asyncio.run(side())

    @staticmethod
    def server(
        told: Callable[[int], None], patience: float, context: ssl.SSLContext | None = None, tries: int = 1
    ) -> Any:  # fmt: skip
        async def side() -> Any:
            listener = bootstrap_aio.AsyncListener("127.0.0.1", 0, ssl=context)
            await listener.start()
            try:
                told(listener.port)
                for left in reversed(range(tries)):
                    try:
                        channel = await listener.accept(2 * patience)
                        channel.patience = patience
                        return await _talk_aio(channel)
                    except bootstrap.NegotiationError:
                        if not left:
                            raise
            finally:
                await listener.close()

        return asyncio.run(side())


async def _talk_aio(channel: bootstrap_aio.AsyncChannel) -> Any:
    try:
        [theirs], more = await channel.exchange([PARAMETERS], data="text")
        await channel.send({"type": "connected"})
        await channel.receive("connected")
    except BaseException:
        channel.close()
        raise
    await channel.bye()
    return theirs, more


FACES = {"blocking": Blocking, "asyncio": Asyncio}
