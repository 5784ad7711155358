"""The out-of-band exchange over real sockets: what is agreed, and every way in which it fails closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport import bootstrap_aio, exchange
from transport.bootstrap import Channel, Listener, PeerGoneError, connect
from transport.bootstrap_aio import AsyncListener
from transport.config import ConnectionParameters
from transport.errors import ConfigError, NegotiationError, NicError
from transport.exchange import Exchange

pytestmark = pytest.mark.xdist_group("ports")

PARAMETERS = ConnectionParameters(
    version=2, addresses=("7f000001",), qpn=5, tag=6, dsn=7, csn=8, mtu=4096, window=2048, max_rd_atomic=16, inline=256,
    icrc="id0", control="dctcp", mode="multipath",
)  # fmt: skip


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = socket.socketpair()
    ours, theirs = Channel(left, "their side", patience=5.0), Channel(right, "our side", patience=5.0)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def raw() -> Iterator[tuple[Channel, socket.socket]]:
    left, right = socket.socketpair()
    channel = Channel(left, "a stranger", patience=5.0, max_line=1000)
    yield channel, right
    channel.close()
    right.close()


def both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Future[Any], Future[Any]]:
    with ThreadPoolExecutor(2) as pool:
        return pool.submit(first), pool.submit(second)


def test_two_sides_learn_each_others_parameters_over_tcp() -> None:
    listener = Listener("127.0.0.1", 0)
    server, client = both(lambda: listener.accept(5.0), lambda: connect("127.0.0.1", listener.port, 5.0))
    listener.close()
    with server.result() as theirs, client.result() as ours:
        assert ours.local == theirs.local == "127.0.0.1"
        told, heard = both(
            lambda: ours.exchange([PARAMETERS], buffers=[1]), lambda: theirs.exchange([PARAMETERS], buffers=[2])
        )
        assert told.result() == ([PARAMETERS], {"buffers": [2]})
        assert heard.result() == ([PARAMETERS], {"buffers": [1]})


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    big = {"type": "data", "text": "x" * 300_000}
    sending = threading.Thread(target=lambda: [ours.send(big) for _ in range(3)])
    sending.start()
    assert [theirs.receive("data") for _ in range(3)] == [big] * 3
    sending.join()
    assert theirs.poll() is None


@pytest.mark.parametrize(
    ("hello", "message"),
    [
        ({"protocol": "http"}, "protocol: 'polyroce-bootstrap' here, 'http' at the peer"),
        ({"version": 2}, "version: 1 here, 2 at the peer"),
        ({"version": None}, "version: 1 here, None at the peer"),
        ({"cipher": "rot13"}, "unknown field cipher = 'rot13'"),
        ({"type": "parameters"}, "'parameters' came, hello was expected"),
    ],
)
def test_another_hello_is_refused_on_both_sides(
    raw: tuple[Channel, socket.socket], hello: dict[str, Any], message: str
) -> None:
    channel, stranger = raw
    good = {"type": "hello", "protocol": "polyroce-bootstrap", "version": 1}
    stranger.sendall(json.dumps({**good, **hello}).encode() + b"\n")
    with pytest.raises(NegotiationError, match=message):
        channel.hello()
    lines = stranger.recv(10_000).splitlines()
    assert json.loads(lines[-1])["type"] == "refused"


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\n",
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"type": 3}\n',
        b'{"type": "hello", "x": NaN}\n',
        b"[" * 400 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_message_is_refused(raw: tuple[Channel, socket.socket], line: bytes) -> None:
    channel, stranger = raw
    stranger.sendall(line)
    with pytest.raises(NegotiationError, match="no JSON object with a type"):
        channel.receive("hello")


def test_a_line_without_end_is_refused_at_its_limit(raw: tuple[Channel, socket.socket]) -> None:
    channel, stranger = raw
    stranger.sendall(b"{" * 1500)
    with pytest.raises(NegotiationError, match="more than 1000 bytes"):
        channel.receive("hello")


def test_too_long_a_message_is_not_sent(raw: tuple[Channel, socket.socket]) -> None:
    with pytest.raises(NegotiationError, match=r"'data' has 20\d\d bytes: at most 1000"):
        raw[0].send({"type": "data", "text": "x" * 2000})


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_negotiation_error(data: bytes) -> None:
    left, right = socket.socketpair()
    channel = Channel(left, "a stranger", patience=5.0, max_line=100)
    right.sendall(data + b"\n")
    right.shutdown(socket.SHUT_WR)
    try:
        message = channel.receive()
    except NegotiationError:
        pass
    else:
        assert isinstance(message["type"], str)
    finally:
        channel.close()
        right.close()


def test_silence_ends_at_the_deadline(pair: tuple[Channel, Channel]) -> None:
    with pytest.raises(NegotiationError, match="their side did not send hello in time"):
        pair[0].receive("hello", patience=0.01)


def test_a_peer_that_does_not_read_ends_at_the_deadline() -> None:
    left, right = socket.socketpair()
    channel = Channel(left, "their side", patience=0.01)
    with pytest.raises(NegotiationError, match="did not take in time"):
        channel.send({"type": "data", "text": "x" * 1_000_000})
    channel.close()
    right.close()


def test_an_end_without_bye_is_a_death(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(PeerGoneError, match="without a bye"):
        ours.receive("hello")


def test_a_bye_is_an_end_that_was_meant(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    theirs.bye()
    assert ours.receive("bye") == {"type": "bye"}


def test_a_bye_in_the_middle_is_an_error(pair: tuple[Channel, Channel]) -> None:
    pair[1].bye()
    with pytest.raises(NegotiationError, match="said bye where parameters was expected"):
        pair[0].receive("parameters")


def test_an_error_inside_with_ends_without_bye(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    with pytest.raises(RuntimeError), theirs:
        raise RuntimeError
    with pytest.raises(PeerGoneError):
        ours.receive()


def _exchange(pair: tuple[Channel, Channel], answer: dict[str, Any], **more: Any) -> str:
    ours, theirs = pair
    theirs.send({"type": "parameters", **answer})
    with pytest.raises(NegotiationError) as caught:
        ours.exchange([PARAMETERS], **more)
    theirs.receive("parameters")
    assert theirs.receive()["type"] == "refused"
    return str(caught.value)


def test_another_number_of_connections_is_named_with_both(pair: tuple[Channel, Channel]) -> None:
    assert "connections: 1 here, 2 at the peer" in _exchange(pair, {"connections": [PARAMETERS.to_json()] * 2})


@pytest.mark.parametrize("listed", [None, 5, [5], ["x"], [[]]])
def test_connections_of_a_wrong_type_are_refused(pair: tuple[Channel, Channel], listed: object) -> None:
    assert "connections" in _exchange(pair, {"connections": listed})


def test_unknown_and_missing_fields_are_named(pair: tuple[Channel, Channel]) -> None:
    answer = {"connections": [PARAMETERS.to_json()]}
    assert "field tls is unknown here" in _exchange(pair, {**answer, "tls": True})


def test_a_field_that_the_peer_does_not_send_is_named(pair: tuple[Channel, Channel]) -> None:
    assert "field buffers is missing" in _exchange(pair, {"connections": [PARAMETERS.to_json()]}, buffers=[])


@pytest.mark.parametrize(("name", "value"), [("mtu", "4096"), ("qpn", -1), ("tag", 1 << 32), ("spin", 1)])
def test_a_wrong_parameter_is_named(pair: tuple[Channel, Channel], name: str, value: object) -> None:
    told = _exchange(pair, {"connections": [{**PARAMETERS.to_json(), name: value}]})
    assert f"parameter {name} = {value!r}" in told


def test_a_port_in_use_is_a_device_error_that_names_it() -> None:
    first = Listener("127.0.0.1", 0)
    with pytest.raises(NicError, match=f"TCP 127.0.0.1 port {first.port}: Address already in use"):
        Listener("127.0.0.1", first.port)
    first.close()


def test_nobody_comes() -> None:
    listener = Listener("127.0.0.1", 0)
    with pytest.raises(NegotiationError, match="nobody came"):
        listener.accept(0.01)
    listener.close()


def test_nobody_listens() -> None:
    listener = Listener("127.0.0.1", 0)
    port = listener.port
    listener.close()
    with pytest.raises(NicError, match=f"cannot connect to 127.0.0.1 TCP port {port}"):
        connect("127.0.0.1", port, patience=0.01)


def test_a_host_without_address_is_named() -> None:
    with pytest.raises(NicError, match=r"cannot find host 'no\.such\.host\.invalid'"):
        connect("no.such.host.invalid", patience=0.5)


def test_a_stranger_at_the_listener_is_refused() -> None:
    listener = Listener("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.sendall(b"\x16\x03\x01\n")
        with pytest.raises(NegotiationError, match="no JSON object"):
            listener.accept(5.0)
    listener.close()


def test_descriptors_above_1023_are_waited_for_too() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"a process may have only {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with contextlib.ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        listener = Listener("127.0.0.1", 0)
        near = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
        near.sendall(Exchange("").encode(exchange.HELLO))
        far = listener.accept(5.0)
        assert far.fileno() > 1023
        near.sendall(b'{"type": "here"}\n')
        assert far.receive("here") == {"type": "here"}
        far.close()
        listener.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_silent_strangers_do_not_keep_others_out() -> None:
    listener = Listener("127.0.0.1", 0)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        for _ in range(80):
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
        coming = pool.submit(connect, "127.0.0.1", listener.port, 20.0)
        near = listener.accept(20.0)
        far = coming.result()
        near.send({"type": "here"})
        assert far.receive("here") == {"type": "here"}
        near.close()
        far.close()
    listener.close()


def test_a_stranger_that_is_gone_again_before_tls_begins_does_not_end_the_listener() -> None:
    listener = Listener("127.0.0.1", 0, ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    for _ in range(3):
        stranger = socket.create_connection(("127.0.0.1", listener.port))
        stranger.sendall(b"no hello at all")
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()  # a reset
    with pytest.raises(NegotiationError):
        listener.accept(0.3)
    listener.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_ssl_context_for_the_other_side_is_refused_at_once(asynchronous: bool) -> None:
    kind = AsyncListener if asynchronous else Listener
    with pytest.raises(ConfigError, match="ssl: a context for clients; one for servers is allowed here"):
        kind("127.0.0.1", 0, ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    wrong = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def go() -> object:
        if asynchronous:
            return asyncio.run(bootstrap_aio.connect("127.0.0.1", 9, ssl=wrong))
        return connect("127.0.0.1", 9, ssl=wrong)

    with pytest.raises(ConfigError, match="ssl: a context for servers; one for clients is allowed here"):
        go()
