"""The example of docs/scenarios.md runs as it stands there, and the tables name what exists."""

from __future__ import annotations

import re
from pathlib import Path

from testbed import runner, scenario, sections
from testbed.progress import Silent
from testbed.workloads.presets import PRESETS
from testbed.workloads.sections import KINDS

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")


def test_the_example_runs_and_holds() -> None:
    example = re.findall(r"```toml\n(.*?)```", TEXT, re.S)
    assert len(example) == 1
    result = runner.run(scenario.parse(example[0], "docs/scenarios.md"), "loopback", Silent())
    assert [variant.name for variant in result.variants] == ["sprayed", "one path"]
    assert result.passed


def test_every_scenario_and_every_key_of_the_sections_is_in_the_document() -> None:
    words = set(re.findall(r"`([\w-]+)`", TEXT))
    assert set(scenario.known()) <= words
    assert set(KINDS) <= words
    assert set(PRESETS) <= words
    of_the_file = (
        sections.TransportSection, sections.FabricSection, sections.UdpSection, sections.WatchSection,
        sections.Blackhole, sections.GraphSection, sections.GraphCable,
        scenario.VariantSection,
    )  # fmt: skip
    for section in (*of_the_file, *KINDS.values()):
        assert set(section.model_fields) <= words, section
