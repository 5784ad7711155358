"""Tests that bind the ports of RoCEv2 take turns, also between the workers of pytest-xdist and with other test runs."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_LOCK = Path(tempfile.gettempdir()) / "polyroce-test-ports.lock"


@pytest.fixture(autouse=True)
def ports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Holds the lock of the group "ports". Of its own, since xdist 3.8 does not see groups under pytest 9.2."""
    marker = request.node.get_closest_marker("xdist_group")
    if marker is None or marker.args != ("ports",):
        yield
        return
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
