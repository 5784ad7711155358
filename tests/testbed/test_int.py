"""A user's control that needs in-band telemetry, over the networks that give it and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cc import registry
from testbed import runner, scenario
from testbed.cli import app
from testbed.progress import Silent
from transport.errors import ConfigError

pytestmark = pytest.mark.xdist_group("ports")

CONTROL = """
from cc.base import Control


class Telemetry(Control):
    name = "telemetry"
    source = "a test"
    summary = "keeps the hops it is told of"
    needs = frozenset({"int_telemetry"})
    told = []

    def on_ack(self, now, ack):
        self.told.append((now, ack.hops))
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "telemetry.py"
    path.write_text(CONTROL)
    return f"{path}:Telemetry"


INCAST = ["ranks=5", "size=200000", "fabric.rate_gbps=100"]


def test_the_hops_of_an_incast_show_the_queue_at_the_last_port(spec: str) -> None:
    loaded = scenario.load("incast", [*INCAST, "fabric.int_telemetry=true", f"transport.cc={spec}"])
    result = runner.run(loaded, "sim", Silent())
    assert result.passed
    told = registry.resolve(spec).told  # type: ignore[attr-defined]
    assert len(told) > 20
    assert all(hops is not None for _, hops in told)
    assert {len(hops) for _, hops in told} == {1}  # of the one switch: hosts do not stamp
    assert max(hops[0].queue for _, hops in told) > 4 * 4160
    assert {hop.rate for _, hops in told for hop in hops} == {100_000_000_000}
    assert all(hops[0].time < now for now, hops in told)


def test_every_switch_on_the_way_stamps_in_order(spec: str) -> None:
    shape = ["fabric.kind=leaf_spine", "fabric.hosts_per_leaf=1", "fabric.spines=1"]
    runner.run(scenario.load("incast", [*INCAST, *shape, "fabric.int_telemetry=true", f"transport.cc={spec}"]), "sim",
               Silent())  # fmt: skip
    told = registry.resolve(spec).told  # type: ignore[attr-defined]
    assert {len(hops) for _, hops in told} == {3}  # leaf, spine, leaf
    assert all(hops[0].time < hops[1].time < hops[2].time < now for now, hops in told)


@pytest.mark.parametrize("on", ["loopback", "udp", "dgram", "sim"])
def test_it_is_refused_before_anything_runs_where_there_is_none(spec: str, on: str) -> None:
    done = CliRunner().invoke(app, ["run", "incast", "--on", on, "--set", f"transport.cc={spec}"])
    assert done.exit_code == 2
    assert f"control telemetry needs int_telemetry, which --on {on} does not give" in " ".join(done.output.split())
    assert registry.resolve(spec).told == []  # type: ignore[attr-defined]


def test_a_later_variant_is_refused_before_the_first_one_runs(spec: str) -> None:
    text = """
name = "two"
summary = "the second one cannot be"
workload = { kind = "pair" }
[[variant]]
name = "plain"
[[variant]]
name = "telemetry"
"""
    loaded = scenario.parse(text + f"set = {{ 'transport.cc' = '{spec}' }}", "two.toml")

    class Loud(Silent):
        def phase(self, *args: object) -> None:
            raise AssertionError("something ran")

    with pytest.raises(ConfigError, match="telemetry needs int_telemetry"):
        runner.run(loaded, "loopback", Loud())


def test_marks_are_needed_over_sockets_that_show_them() -> None:
    loaded = scenario.load("pair", ["transport.cc=dctcp"])
    with pytest.raises(
        ConfigError, match="control dctcp needs ecn, which --on dgram does not give here; --on udp does"
    ):
        runner.run(loaded, "dgram", Silent())
