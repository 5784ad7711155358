"""Many connections of one endpoint, each over many paths: what they cost when all have sent and lie idle."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

from testbed.report import compiled
from tests.helpers import Pair
from transport.completion import Status
from transport.states import State

pytestmark = pytest.mark.xdist_group("ports")

COUNT = 1024
#: Bytes of an idle connection; interpreted, every object has a dict.
EACH = 2 << 10 if compiled() else 8 << 10
#: What the process grows by on the way: code that runs for the first time, buffers of the exchange.
BESIDE = 7 << 19


def test_connections_that_all_sent_over_many_paths_are_small_again_when_idle():
    limit = (COUNT * EACH + BESIDE) / (1 << 20)
    command = [sys.executable, "-m", "tests.benchmarks.connections", "--count", str(COUNT), "--limit-mib", str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert result["right"] == COUNT
    assert result["still_awake"] == 0
    assert result["least_source_ports"] >= 4
    assert result["grown_idle_mib"] <= limit
    assert done.returncode == 0


def calls_of(action) -> int:
    """How many Python functions `action` calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()  # finalizers of what other tests left would be counted
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("step", ["create", "connect", "close", "destroy"])
def test_no_step_of_a_connections_life_depends_on_how_many_others_there_are(step):
    def calls_among(others: int) -> int:
        pair = Pair(control="fixed", idle_after=0)
        host, peer = pair.alice.endpoint, pair.bob.endpoint
        domain, their_domain = host.protection_domain(), peer.protection_domain()
        remote = [peer.create_connection(their_domain, 0) for _ in range(others)]
        for item in remote:
            host.create_connection(domain, 0).connect(0, item.parameters)
        one = host.create_connection(domain, 0)
        if step == "create":
            return calls_of(lambda: host.create_connection(domain, 0))
        if step == "connect":
            return calls_of(lambda: one.connect(0, remote[0].parameters))
        one.connect(0, remote[0].parameters)
        if step == "destroy":
            one.fail(0, Status.FATAL_ERR, "made to fail", None)
        calls = calls_of(lambda: one.close(0))
        assert one.state == (State.RESET if step == "destroy" else State.SQD)
        return calls

    assert calls_among(10) == calls_among(3000)
