"""Every workload of the package with real rank processes over sockets, at small size: all bytes right."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import runner, scenario
from testbed.progress import Silent
from transport.errors import ConfigError

pytestmark = pytest.mark.xdist_group("ports")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("one-to-n", ("ranks=4", "size=16KiB")),
        ("alltoall", ("ranks=3", "size=16KiB")),
        ("allreduce-ring", ("ranks=3", "size=100000")),
        ("allreduce-tree", ("ranks=3", "size=32KiB")),
        ("m2n", ("attention=2", "experts=1", "tokens=8", "gini=0.0")),
        ("moe-deepep-ll", ("ranks=4", "tokens=4")),
        ("moe-dsv3-prefill", ("ranks=4", "max_nodes=2", "tokens=8", "layers=1")),
        ("moe-dsv3-decode", ("ranks=3", "tokens=4")),
        ("moe-mixtral", ("ranks=2", "tokens=8", "layers=1")),
        ("moe-dbrx", ("ranks=2", "tokens=8", "layers=1")),
        ("moe-scaled", ("ranks=2", "tokens=8", "layers=1")),
    ],
)
def test_a_workload_of_the_package(name: str, settings: tuple[str, ...]) -> None:
    result = runner.run(scenario.load(name, settings), "udp", Silent())
    assert result.passed
    assert result.variants[0].metrics["requests_failed"] == 0


@pytest.mark.parametrize("name", ["incast", "alltoall"])
def test_a_workload_over_sockets_that_asyncio_moves(name: str) -> None:
    result = runner.run(scenario.load(name, ("ranks=3", "size=16KiB")), "dgram", Silent())
    assert result.passed
    assert any(note.startswith("cc swift: none was named") for note in result.variants[0].notes)


def test_a_control_that_was_named_is_used_or_refused() -> None:
    settings = ("messages=2", "size=1000")
    result = runner.run(scenario.load("pair", (*settings, "transport.cc=fixed")), "dgram", Silent())
    assert result.passed
    assert not any(note.startswith("cc ") for note in result.variants[0].notes)
    with pytest.raises(ConfigError, match="control dctcp needs ecn"):
        runner.run(scenario.load("pair", (*settings, "transport.cc=dctcp")), "dgram", Silent())


def test_a_matrix_whose_rank_0_takes_no_part(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("0 0 0\n0 0 20K\n0 3K 0\n")
    source = f'name = "m"\nsummary = "m"\n[workload]\nkind = "matrix"\nfile = "{tmp_path}/m"\n'
    result = runner.run(scenario.parse(source, "m.toml"), "udp", Silent())
    assert result.passed
    assert result.variants[0].metrics["logical_bytes"] == 23_000
    assert any("one flow from rank 1" in note for note in result.variants[0].notes)
