"""Compiled and interpreted modules compute the same bits: both must give the digests below."""

from __future__ import annotations

import zlib

import pytest

from cc.base import Environment
from cc.registry import make, resolve
from cc.signals import LossSignal
from tests.cc.loop import US, ack


@pytest.mark.parametrize(
    ("name", "digest"), [("fixed", 2870899636), ("dctcp", 2987290813), ("swift", 60130799), ("nscc", 1625410746)]
)
def test_a_long_history_ends_in_the_same_bits_in_both_modes(name: str, digest: int) -> None:
    control = make(resolve(name), None, Environment(4096, 100_000_000_000, 12 * US, 8 << 20, 5 * US))
    state, now, seen = 1, 5 * US, 0
    for _ in range(5000):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        draw = state >> 33
        now += draw % (2 * US)
        if draw % 97 == 0:
            loss = LossSignal()
            loss.lost_bytes, loss.in_flight, loss.sent_at = 4096, control.window, now - draw % (20 * US)
            control.on_loss(now, loss)
        elif draw % 1009 == 0:
            control.on_timeout(now)
        else:
            rtt = 10 * US + draw % (16 * US)
            control.on_ack(now, ack(draw % 65536, rtt=rtt, in_flight=control.window, marked=draw % 13 == 0))
        seen = zlib.crc32(f"{control.window} {control.rate};".encode(), seen)
    assert seen == digest
