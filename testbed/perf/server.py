"""The serving end: takes part in what the client's plan says, and never decides anything."""

from __future__ import annotations

import signal
import socket
import sys

from rich.console import Console

from testbed.perf.plan import Plan
from testbed.perf.side import GLANCE, Side, checked, post_ping, post_pongs
from testbed.rank_process import die_with_parent
from transport.bootstrap import Channel, Listener
from transport.completion import Opcode
from transport.errors import PolyroceError

_RECEIVES = (Opcode.RECV, Opcode.RECV_RDMA_WITH_IMM)


def serve(bind: str, port: int, own: Plan, console: Console, pcap: str = "") -> None:
    """Wait for one client on TCP `bind`:`port`, and serve it to the end. own: whose control is used here."""
    listener = Listener(bind or "0.0.0.0", port)
    try:
        console.print(f"waiting for a client on TCP port {listener.port}")
        channel = listener.accept()
    finally:
        listener.close()
    with channel:
        console.print(f"serving {channel.peer}")
        attend(channel, bind or channel.local, own.cc, pcap)


def attend(channel: Channel, address: str, cc: str, pcap: str = "") -> None:
    """Serve the client on `channel`. Errors are told to it and raised."""
    request = channel.receive("request")
    try:
        plan = Plan.from_json(request.get("plan", {}), cc)
        side = Side(1, plan, address, pcap)
    except PolyroceError as error:
        raise channel.refuse(str(error)) from None
    try:
        side.connect(channel)
        channel.send({"type": "connected"})
        while (order := channel.receive("begin", "bye", patience=60.0))["type"] == "begin":
            if order.get("size") not in plan.sizes:
                raise channel.refuse(f"size: {order.get('size')!r} is not in the plan")
            side.size = order["size"]
            (_serve_latency if plan.latency else _serve_bandwidth)(channel, side)
        side.finish()
    except BaseException:
        side.close()
        raise


def _serve_bandwidth(channel: Channel, side: Side) -> None:
    """Take what comes until the client says how much it was, then say what is in the buffers."""
    plan = side.plan
    consumes = plan.op in ("send", "write_imm")
    delivered = 0
    numbers = {connection.qpn: number for number, connection in enumerate(side.connections)}
    if consumes:
        for number in range(plan.qps):
            for _ in range(side.endpoint.config.rq_depth - side.posted[number]):
                _post_receive(side, number)
    channel.send({"type": "begun"})
    glance = side.driver.now() + GLANCE
    wanted: int | None = None
    while wanted is None or (consumes and delivered < wanted):
        for completion in side.driver.step(glance):
            if completion.opcode in _RECEIVES:
                checked(completion)
                delivered += 1
                side.posted[numbers[completion.qpn]] -= 1
                _post_receive(side, numbers[completion.qpn])
        if side.driver.now() >= glance:
            glance = side.driver.now() + GLANCE
            if (message := channel.poll()) is not None:
                wanted = _ended(channel, message)
    channel.send({"type": "result", "digests": side.digests(), "counters": side.endpoint.counters()})


def _post_receive(side: Side, number: int) -> None:
    buffer = side.views[number] if side.plan.op == "send" else bytearray(0)
    side.connections[number].post_recv(side.driver.now(), number, buffer)
    side.posted[number] += 1


def _serve_latency(channel: Channel, side: Side) -> None:
    """Answer every ping with one of the same size."""
    connection = side.connections[0]
    post_pongs(side, connection)
    channel.send({"type": "begun"})
    glance = side.driver.now() + GLANCE
    answered = 0
    wanted: int | None = None
    while wanted is None or answered < wanted:
        for completion in side.spin():
            if checked(completion).opcode == Opcode.RECV_RDMA_WITH_IMM:
                answered += 1
                side.posted[0] -= 1
                post_ping(side, connection, answered)
                post_pongs(side, connection)
        if side.driver.now() >= glance:
            glance = side.driver.now() + GLANCE
            if (message := channel.poll()) is not None:
                wanted = _ended(channel, message)
    channel.send({"type": "result", "digests": side.digests(), "counters": side.endpoint.counters()})


def _ended(channel: Channel, message: dict[str, object]) -> int:
    """How many messages the client's "end" speaks of."""
    count = message.get("messages")
    if message["type"] != "end" or not isinstance(count, int):
        raise channel.refuse(f"message type: {message['type']!r} came, end was expected")
    return count


def main() -> None:
    """The server of `perf --local`: its channel is the socket whose number is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    try:
        with Channel(socket.socket(fileno=int(sys.argv[1])), "the client") as channel:
            attend(channel, sys.argv[2], sys.argv[3])
    except PolyroceError:  # the client was told
        sys.exit(1)


if __name__ == "__main__":
    main()
