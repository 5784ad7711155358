"""Hypothesis budgets, and turns for tests that bind the ports of RoCEv2.

Budgets: `quick` (interpreted runs), `default`, and `long` for a night. Choose with HYPOTHESIS_PROFILE.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

settings.register_profile("quick", max_examples=25, **_COMMON)
settings.register_profile("default", max_examples=100, **_COMMON)
settings.register_profile("long", max_examples=5000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

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
