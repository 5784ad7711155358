"""A short run of the bootstrap fuzzer; how to run the long ones is in docs/robustness.md."""

from __future__ import annotations

import pytest

from tests.fuzz.bootstrap import Fuzzer, work
from tests.fuzz.packets import Wrong
from transport.exchange import Exchange


def test_five_thousand_messages_end_in_a_connection_or_in_a_named_error() -> None:
    found = work(seed=3, count=5000)
    ends = found["ends"]
    assert isinstance(ends, dict)
    assert {f"{place}: Refusal" for place in ("hello", "parameters", "connected")} <= ends.keys()
    assert {f"{place}: PeerGoneError" for place in ("hello", "parameters", "connected")} <= ends.keys()
    assert "parameters: NegotiationError" in ends  # the connection itself refused
    assert ends["connected"] > 20


def test_the_same_seed_says_the_same() -> None:
    def run(seed: int) -> dict[str, int]:
        fuzzer = Fuzzer(seed)
        fuzzer.run(500)
        return dict(fuzzer.ends)

    assert run(5) == run(5) != run(6)


def test_an_error_that_repeats_a_long_text_of_the_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(line: Exchange, message: dict[str, object]) -> None:
        raise line.refusal(f"a hello of {'x' * 5000}")

    monkeypatch.setattr(Exchange, "check_hello", careless)
    with pytest.raises(Wrong, match="an error of"):
        Fuzzer(1).run(100)
