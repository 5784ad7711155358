"""Scenario files: what is read, what is refused and how, and the files that come with the package."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import scenario
from testbed.scenario import load, parse, parse_override
from testbed.sections import FaultsSection
from transport.clock import MS, US
from transport.errors import ConfigError

PAIR = """
name = "mine"
summary = "one flow"

[transport]
paths = 8

[workload]
kind = "pair"
messages = 3
size = "64KiB"

[[faults.blackhole]]
path = 1
start_us = 10
end_us = 20

[expect]
bytes_wrong = 0
goodput_percent = { min = 90 }
"""


def test_a_file_is_read() -> None:
    (variant,) = parse(PAIR, "mine.toml").variants
    assert variant.config.paths == 8
    assert variant.settings.faults.plan(1.0).holes[0].end == 20 * US
    assert str(variant.expect["goodput_percent"]) == ">= 90"
    workload = variant.settings.workload.make(1, 1.0)
    assert [message.size for message in workload.phases[0].messages] == [65536] * 3


def test_a_plane_that_dies_is_read() -> None:
    text = PAIR.replace("paths = 8", "paths = 8\nports = 2").replace(
        "[[faults.blackhole]]\npath", "[[faults.plane]]\nplane"
    )
    (variant,) = parse(text, "mine.toml").variants
    (dead,) = variant.settings.faults.plan(1.0).planes
    assert (dead.plane, dead.start, dead.end) == (1, 10 * US, 20 * US)


def test_paths_of_the_second_plane_are_numbered_on() -> None:
    text = PAIR.replace("paths = 8", "paths = 8\nports = 2")
    (variant,) = parse(text.replace("path = 1", "path = 15"), "mine.toml").variants
    assert variant.settings.faults.plan(1.0).holes[0].path == 15
    with pytest.raises(ConfigError, match=r"faults\.blackhole\.path = 16: allowed are 0 to 15"):
        parse(text.replace("path = 1", "path = 16"), "mine.toml")


def test_times_of_faults_can_be_stretched() -> None:
    plan = FaultsSection(jitter_us=40.0).plan(25.0)
    assert plan.jitter == MS


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("paths = 8", "pathss = 8", "mine.toml, line 6: key transport.pathss is unknown; known: paths, entropies"),
        ("paths = 8", 'paths = "8"', "mine.toml, line 6: transport.paths = '8': "),
        ("paths = 8", "paths = 0", "mine.toml, line 6: transport: paths = 0: allowed are whole numbers from 1 to"),
        ("paths = 8", "paths = 20000", "paths = 20000: allowed are whole numbers from 1 to"),
        ("paths = 8", "mtu = 1500", "line 6: transport: mtu = 1500: allowed are the verbs MTUs 256, 512"),
        ("paths = 8", 'selector = "best"', "line 6: transport: selector = 'best': allowed are"),
        ("paths = 8", 'cc = "bbr"', "line 6: transport: cc = 'bbr': congestion control 'bbr' is unknown; known: fixed"),
        (
            "paths = 8",
            'cc = "fixed"\ncc_parameters = { size = 1 }',
            "parameter 'size' .*is unknown; known: window_bdps",
        ),
        ('size = "64KiB"', "size = -1", r"line 11: workload.size: size = -1: allowed are 0 to 4 GiB"),
        ("messages = 3", "messages = 0", "line 10: workload.messages = 0: "),
        ("messages = 3", "tokens = 3", "line 10: key workload.tokens is unknown; known: messages"),
        ('kind = "pair"', 'kind = "ring"', "workload.kind = 'ring': allowed are pair, incast, one_to_n, permutation"),
        ('kind = "pair"', "", "key workload.kind is missing"),
        ("path = 1", "path = 8", "line 13: faults.blackhole.path = 8: allowed are 0 to 7"),
        ("path = 1", "hole = 1", "key faults.blackhole.0.hole is unknown; known: path, start_us, end_us"),
        ("end_us = 20", "end_us = 10", "faults.blackhole.end_us = 10.0: it is not after start_us"),
        ("[[faults.blackhole]]\npath = 1", "[[faults.plane]]\nplane = 1", "faults.plane.plane = 1: allowed are 0 to 0"),
        (
            "[[faults.blackhole]]",
            "[[faults.plane]]",
            "key faults.plane.0.path is unknown; known: plane, start_us, end_us",
        ),
        ("paths = 8", "ports = 9", "line 6: transport.ports = 9: "),
        ("bytes_wrong = 0", "bites_wrong = 0", "line 19: metric 'bites_wrong' is unknown; known: "),
        ("bytes_wrong = 0", 'bytes_wrong = "none"', "line 19: expect.bytes_wrong"),
        ("bytes_wrong = 0", "latency_p50_change_percent = 2", "compares with a baseline"),
        ("{ min = 90 }", "{ least = 90 }", "key expect.goodput_percent.least is unknown; known: max, min, equals"),
        ('summary = "one flow"', "", "key summary is missing"),
        ('name = "mine"', 'name = "My File"', "line 2: name = 'My File'"),
        ("[expect]", "[expect", "mine.toml: not TOML: .*line 18"),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_what_is_allowed(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(PAIR.replace(old, new), "mine.toml")


VARIANTS = (
    PAIR
    + """
[[variant]]
name = "first"
baseline = "second"
expect = { latency_p50_change_percent = 2 }

[[variant]]
name = "second"
set = { "transport.paths" = 2, "workload.size" = "1KiB" }
"""
)


def test_a_variant_changes_what_it_sets_and_adds_what_it_expects() -> None:
    first, second = parse(VARIANTS, "mine.toml").variants
    assert (first.config.paths, second.config.paths) == (8, 2)
    assert set(first.expect) - set(second.expect) == {"latency_p50_change_percent"}


def test_an_override_is_stronger_than_a_variant() -> None:
    found = parse(VARIANTS, "mine.toml", ["transport.paths=5", "seed=9"])
    assert [variant.config.paths for variant in found.variants] == [5, 5]
    assert found.seed == 9


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"transport.paths" = 2',
            '"transport.path" = 2',
            "variant 'second' transport.path=2: key transport.path is unk",
        ),
        ('"transport.paths" = 2', '"transport.paths" = 0', "variant 'second' transport.paths=0: transport: paths = 0"),
        ('baseline = "second"', 'baseline = "third"', "baseline = 'third': allowed are first, second"),
        ('name = "second"', 'name = "first"', "variant 'first' is there twice"),
        ('"transport.paths" = 2', '"name" = "other"', "name cannot be set"),
    ],
)
def test_a_mistake_in_a_variant_names_the_variant(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(VARIANTS.replace(old, new), "mine.toml")


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("transport.paths=8", "transport.paths", 8),
        ("size=small", "size", "small"),
        ("workload.size = 1MiB", "workload.size", "1MiB"),
        ("faults.loss=0.5", "faults.loss", 0.5),
        ('a.b="x=y"', "a.b", "x=y"),
        ("layers=[0, 7]", "layers", [0, 7]),
        ("transport.icrc=false", "transport.icrc", False),
    ],
)
def test_an_override_is_a_key_and_a_toml_value_or_text(text: str, key: str, value: object) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["paths", "=3", "a..b=1", "a b=1"])
def test_an_override_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_override(text)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("transport.path=8", "--set transport.path=8: key transport.path is unknown"),
        ("workload.size=-5", "--set workload.size=-5: workload.size: size = -5"),
        ("size=-5", "--set size=-5: workload.size: size = -5"),
        ("wings=2", "--set wings=2: key workload.wings is unknown"),
        ("transport.mtu=1500", "--set transport.mtu=1500: transport: mtu = 1500"),
        ("seed.x=1", "seed has no keys of its own|seed"),
    ],
)
def test_an_override_is_checked_like_the_file(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(PAIR, "mine.toml", [override])


@given(st.text(max_size=60), st.text(max_size=30))
def test_any_text_is_read_or_refused_by_name(text: str, override: str) -> None:
    for source, settings in (
        (text, []),
        (PAIR + text, []),
        (PAIR, [override]),
        (PAIR, [f"transport.paths={override}"]),
    ):
        told = refusal(source, settings)
        assert told is None or "mine.toml" in told or "--set" in told


@given(
    section=st.sampled_from(["transport", "workload", "fabric", "faults", "expect", "variant", "udp"]),
    key=st.sampled_from(["paths", "size", "queue", "loss", "blackhole", "name", "cc_parameters", "messages", "x"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_a_value_of_any_type_is_read_or_refused_by_name(section: str, key: str, value: object) -> None:
    assert refusal(PAIR, [f"{section}.{key}={_toml(value)}"]) != ""


def refusal(text: str, overrides: list[str]) -> str | None:
    """What is said against a file, None if nothing is."""
    try:
        found = parse(text, "mine.toml", overrides)
    except ConfigError as error:
        return str(error)
    return None if found.variants else ""


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r} = {_toml(v)}" for k, v in value.items()) + "}"
    return repr(value)


@pytest.mark.parametrize("name", list(scenario.known()))
def test_a_scenario_of_the_package_is_valid_and_named_like_its_file(name: str) -> None:
    found = load(name)
    assert found.name == name
    assert len(found.summary) > 10
    for variant in found.variants:
        assert variant.expect["bytes_wrong"].max == 0


def test_an_unknown_scenario_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'moe-allto' is unknown; known: .*moe-alltoall.*or a file"):
        load("moe-allto")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml cannot be read: No such file"):
        load(str(tmp_path / "nothing.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.toml cannot be read: it is not UTF-8"):
        load(str(tmp_path / "bytes.toml"))


def test_the_bounds_are_those_of_the_rows() -> None:
    def limits(name: str, metric: str) -> list[tuple[float | None, float | None]]:
        return [(v.expect[metric].min, v.expect[metric].max) for v in load(name).variants if metric in v.expect]

    assert limits("c2-multipath-idle", "latency_p50_change_percent") == [(None, 2)]
    assert limits("c2-multipath-idle", "latency_p99_change_percent") == [(None, 2)]
    assert limits("c6-dead-path", "eviction_share") == [(None, 1), (None, 1)]
    assert limits("c7-loss", "goodput_percent") == [(97, None), (93, None), (90, None)]
    assert limits("c8-reordering", "spurious_percent") == [(None, 1), (None, 1)]


def test_classic_mode_is_read_and_a_selector_or_ports_beside_it_are_refused() -> None:
    text = PAIR.replace("paths = 8", 'paths = 8\nmode = "classic"')
    assert parse(text, "mine.toml").variants[0].config.path_selector == "single"
    with pytest.raises(ConfigError, match=r"selector = 'reps': mode = 'classic'.*only 'single' is allowed"):
        parse(text, "mine.toml", ["transport.selector=reps"])
    with pytest.raises(ConfigError, match=r"ports = 2: mode = 'classic' has one path, so 1 is allowed"):
        parse(text, "mine.toml", ["transport.ports=2"])
