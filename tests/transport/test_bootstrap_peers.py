"""Both faces and both roles of the bootstrap against peers that stall, end or lie at any byte, and behind TLS."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trustme

from tests.transport.bootstrap_faces import FACES, PARAMETERS
from transport import bootstrap, bootstrap_aio, exchange
from transport.bootstrap import NegotiationError

pytestmark = pytest.mark.xdist_group("ports")

#: What a peer that does all right sends from its first byte to its last.
WHOLE = b"".join(
    json.dumps(message).encode() + b"\n"
    for message in (
        exchange.HELLO, exchange.parameters([PARAMETERS], {"data": "text"}), {"type": "connected"}, exchange.BYE,
    )
)  # fmt: skip
#: Up to here a peer has to come for an exchange that succeeds.
ENOUGH = len(WHOLE) - len(json.dumps(exchange.BYE)) - 1

#: Of those that wait for a peer that stalls, and of all others: seconds that a busy machine does not reach.
SHORT = 1.0
LONG = 30.0
HELLO_LINE = json.dumps(exchange.HELLO).encode() + b"\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PATIENCE", SHORT)
    monkeypatch.setattr(bootstrap_aio, "PATIENCE", SHORT)


def as_client(face: Any, peer: Callable[[socket.socket], None], patience: float = LONG) -> Any:
    """What the face's client gets from that server: a result or an error."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connected, _ = listening.accept()
            with connected, contextlib.suppress(OSError):
                peer(connected)

        server = threading.Thread(target=serve)
        server.start()
        try:
            return face.client(listening.getsockname()[1], patience)
        except NegotiationError as error:
            return error
        finally:
            server.join()


def as_server(face: Any, peer: Callable[[socket.socket], None], patience: float = LONG) -> Any:
    """What the face's server gets from that client: a result or an error."""
    ports: queue.Queue[int] = queue.Queue()

    def come() -> None:
        with socket.create_connection(("127.0.0.1", ports.get())) as sock, contextlib.suppress(OSError):
            peer(sock)

    client = threading.Thread(target=come)
    client.start()
    try:
        return face.server(ports.put, patience)
    except NegotiationError as error:
        return error
    finally:
        client.join()


ROLES = {"client": as_client, "server": as_server}


def until_it_ends(sock: socket.socket) -> None:
    """Read until the other side ends; 30 s are more than it has."""
    sock.settimeout(30.0)
    while sock.recv(4096):
        pass


def outcomes(
    role: Any, face: Any, peers: list[Callable[[socket.socket], None]], patience: float = LONG
) -> list[Any]:  # fmt: skip
    with ThreadPoolExecutor(64) as pool:
        return list(pool.map(lambda peer: role(face, peer, patience), peers))


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Any:
    return FACES[request.param]


@pytest.fixture(params=ROLES)
def role(request: pytest.FixtureRequest) -> Any:
    return ROLES[request.param]


@pytest.mark.usefixtures("impatient")
def test_a_peer_that_stalls_at_any_byte_is_an_error_at_the_deadline(face: Any, role: Any) -> None:
    def peer(count: int) -> Callable[[socket.socket], None]:
        def stall(sock: socket.socket) -> None:
            sock.sendall(WHOLE[:count])
            until_it_ends(sock)

        return stall

    found = outcomes(role, face, [peer(count) for count in range(len(WHOLE) + 1)], SHORT)
    for count, result in enumerate(found):
        if count >= ENOUGH:
            assert result == (PARAMETERS, {"data": "text"})
        else:
            awaited = ["hello", "parameters", "connected"][WHOLE[:count].count(b"\n")]
            assert str(result) == f"127.0.0.1 did not send {awaited} in time", count


@pytest.mark.usefixtures("impatient")
def test_a_peer_that_sends_a_byte_now_and_then_gains_no_time(face: Any, role: Any) -> None:
    def trickle(sock: socket.socket) -> None:
        for byte in WHOLE:
            sock.sendall(bytes([byte]))
            sock.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                if not sock.recv(4096):
                    return

    assert "did not send hello in time" in str(role(face, trickle, SHORT))


def test_a_peer_that_ends_at_any_byte_is_an_error(face: Any, role: Any) -> None:
    def peer(count: int) -> Callable[[socket.socket], None]:
        def end(sock: socket.socket) -> None:
            sock.sendall(WHOLE[:count])
            sock.shutdown(socket.SHUT_WR)
            until_it_ends(sock)

        return end

    found = outcomes(role, face, [peer(count) for count in range(len(WHOLE) + 1)])
    for count, result in enumerate(found):
        if count >= ENOUGH:
            assert result == (PARAMETERS, {"data": "text"})
        else:
            assert str(result) == "127.0.0.1 ended the bootstrap channel without a bye", count


@pytest.mark.usefixtures("impatient")
def test_a_peer_that_is_reset_at_any_byte_is_an_error(face: Any, role: Any) -> None:
    def peer(count: int) -> Callable[[socket.socket], None]:
        def reset(sock: socket.socket) -> None:
            sock.sendall(WHOLE[:count])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        return reset

    found = outcomes(role, face, [peer(count) for count in range(0, ENOUGH, 7)], SHORT)
    for result in found:
        assert isinstance(result, NegotiationError)
        # A client that is reset so early that it was never connected tries again, and nobody is there any more.
        assert re.match(r"127.0.0.1(: | ended )the bootstrap channel|127.0.0.1 did not send hello in time", str(result))


def test_a_peer_that_lies_at_any_byte_is_refused_and_told_why(face: Any, role: Any) -> None:
    heard: dict[int, bytes] = {}

    def peer(place: int) -> Callable[[socket.socket], None]:
        def lie(sock: socket.socket) -> None:
            sock.sendall(WHOLE[:place] + b"\x00" + WHOLE[place + 1 : ENOUGH])
            sock.settimeout(30.0)
            heard[place] = b""
            while data := sock.recv(4096):
                heard[place] += data

        return lie

    found = outcomes(role, face, [peer(place) for place in range(ENOUGH - 1)])
    for place, result in enumerate(found):
        assert isinstance(result, NegotiationError), place
        assert b'{"type":"refused","reason":"' in heard[place], place


def test_another_version_is_named_with_both(face: Any, role: Any) -> None:
    def other(sock: socket.socket) -> None:
        sock.sendall(json.dumps(exchange.HELLO | {"version": 2}).encode() + b"\n")
        until_it_ends(sock)

    assert str(role(face, other)) == "127.0.0.1: version: 1 here, 2 at the peer"


def test_a_peer_that_stalls_holds_up_no_other(face: Any) -> None:
    ports: queue.Queue[int] = queue.Queue()
    with ThreadPoolExecutor(2) as pool:
        served = pool.submit(face.server, ports.put, 10.0)
        port = ports.get()
        with contextlib.ExitStack() as stack:
            for count in (0, 1, len(HELLO_LINE) - 1):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                sock.sendall(HELLO_LINE[:count])
            assert face.client(port, 10.0) == served.result() == (PARAMETERS, {"data": "text"})


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def contexts(authority: trustme.CA) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server that has a certificate for 127.0.0.1, and of a client that trusts its authority."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


def over(
    first: Any, second: Any, server: ssl.SSLContext | None, client: ssl.SSLContext | None, host: str = "127.0.0.1"
) -> tuple[Any, Any]:
    """What the server of the first face and the client of the second get."""
    ports: queue.Queue[int] = queue.Queue()

    def result(side: Callable[[], Any]) -> Any:
        try:
            return side()
        except NegotiationError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        served = pool.submit(result, lambda: first.server(ports.put, LONG, server))
        port = ports.get()
        called = pool.submit(result, lambda: second.client(port, LONG, client, host))
        return served.result(), called.result()


@pytest.mark.parametrize("other", FACES)
def test_tls_between_any_two_faces(face: Any, other: str, contexts: Any) -> None:
    assert over(face, FACES[other], *contexts) == ((PARAMETERS, {"data": "text"}),) * 2


def test_a_certificate_of_an_unknown_authority_is_refused(face: Any, contexts: Any) -> None:
    stranger = ssl.create_default_context()
    trustme.CA().configure_trust(stranger)
    served, called = over(face, face, contexts[0], stranger)
    assert str(called).startswith("127.0.0.1: the TLS handshake failed: certificate verify failed: ")
    assert "127.0.0.1: the TLS handshake failed: " in str(served)


def test_a_certificate_for_another_host_is_refused(face: Any, contexts: Any) -> None:
    _, called = over(face, face, *contexts, host="localhost")
    assert str(called).startswith("localhost: the TLS handshake failed: certificate verify failed: Hostname mismatch")


def test_a_plain_client_of_a_tls_server_is_refused(face: Any, contexts: Any) -> None:
    served, called = over(face, face, contexts[0], None)
    assert "the TLS handshake failed: " in str(served)
    assert isinstance(called, NegotiationError)


def test_a_tls_client_of_a_plain_server_is_refused(face: Any, contexts: Any) -> None:
    served, called = over(face, face, None, contexts[1])
    assert "no JSON object with a type" in str(served)
    assert str(called).startswith("127.0.0.1: the TLS handshake failed: ")


def test_a_client_without_the_certificate_that_a_server_asks_for_is_refused(
    face: Any, contexts: Any, authority: trustme.CA
) -> None:
    server, client = contexts
    server.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server)
    served, called = over(face, face, server, client)
    assert "peer did not return a certificate" in str(served)
    assert isinstance(called, NegotiationError)


def test_a_peer_that_stalls_in_the_tls_handshake_is_an_error_at_the_deadline(face: Any, contexts: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(NegotiationError, match=r"127.0.0.1 did not .* in time"),
    ):
        face.client(silent.getsockname()[1], SHORT, contexts[1])
