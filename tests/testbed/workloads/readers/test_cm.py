"""Connection matrices of htsim: the real files, what starts when, what is written, and mistakes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.workloads.base import Bytes, Message, Workload, received_by, runnable
from testbed.workloads.readers.cm import (
    Connection,
    ConnectionMatrix,
    Failure,
    Trigger,
    Unit,
    parse,
    write,
)
from testbed.workloads.readers.files import packaged, read_text
from testbed.workloads.replay import from_connections
from testbed.workloads.routing import gini
from transport.clock import MS, NEVER, US
from transport.errors import ConfigError

DATA = Path(__file__).resolve().parents[3] / "data" / "htsim"
HEAD = "Nodes 16\nConnections {}\nTriggers {}\n"


def read(name: str, unit: Unit = "us", lenient: bool = False) -> ConnectionMatrix:
    return parse(read_text(DATA / name), name, unit, lenient)


def body(*lines: str) -> str:
    """A file with these lines and a header that counts them."""
    triggers = sum(line.startswith("trigger") for line in lines)
    return HEAD.format(len(lines) - triggers, triggers) + "\n".join(lines)


def total(matrix: ConnectionMatrix) -> int:
    return sum(c.size for c in matrix.connections)


def received(matrix: ConnectionMatrix) -> Bytes:
    return received_by((Message(c.src, c.dst, c.size) for c in matrix.connections), matrix.nodes)


def degrees(matrix: ConnectionMatrix) -> tuple[Counter[int], Counter[int]]:
    """Out and in."""
    return Counter(c.src for c in matrix.connections), Counter(c.dst for c in matrix.connections)


# The real files.


def test_an_incast_without_ids_or_a_final_newline() -> None:
    matrix = read("incast.cm")
    assert not read_text(DATA / "incast.cm").endswith("\n")
    assert (matrix.nodes, len(matrix.connections), total(matrix)) == (16, 15, 30_000_000)
    assert {c.dst for c in matrix.connections} == {15}
    assert gini(received(matrix)) == pytest.approx(0.9375, abs=5e-5)
    assert {c.id for c in matrix.connections} == {None}


def test_an_incast_of_127() -> None:
    matrix = read("incast_128.cm")
    assert (matrix.nodes, len(matrix.connections), total(matrix)) == (128, 127, 254_000_000)
    assert {c.dst for c in matrix.connections} == {33}


def test_outcast_and_incast_at_once() -> None:
    matrix = read("outcast_incast.cm")
    out, into = degrees(matrix)
    assert (matrix.nodes, len(matrix.connections)) == (128, 21)
    assert (out[2], into[0]) == (10, 3)


@pytest.mark.parametrize(("name", "nodes"), [("perm_16n_16c_2MB.cm", 16), ("perm_32n_32c_2MB.cm", 32)])
def test_a_permutation(name: str, nodes: int) -> None:
    matrix = read(name)
    out, into = degrees(matrix)
    assert (matrix.nodes, len(matrix.connections)) == (nodes, nodes)
    assert set(out.values()) == set(into.values()) == {1}
    assert gini(received(matrix)) == 0


def test_one_connection() -> None:
    assert read("one.cm").connections == (Connection(0, 13, 2_000_000, start=0),)


def test_a_header_that_counts_what_is_not_there_and_triggers_that_nobody_declared() -> None:
    with pytest.raises(ConfigError, match=r"uet_a2a\.cm, line 2: Connections 3600: the file has 240"):
        read("uet_a2a.cm")
    matrix = read("uet_a2a.cm", lenient=True)
    assert (matrix.nodes, len(matrix.connections), total(matrix)) == (16, 240, 480_000_000)
    assert sum(c.trigger is not None for c in matrix.connections) == 224
    assert matrix.notes[:3] == (
        "warning: uet_a2a.cm, line 2: Connections 3600: the file has 240",
        "warning: uet_a2a.cm, line 3: Triggers 3360: the file has 0",
        "warning: uet_a2a.cm: 224 triggers are not declared, the first is 1; taken for oneshots",
    )


def test_its_sound_twin_has_the_same_shape() -> None:
    matrix = read("uet_alltoall_serial_16n.cm")
    assert (len(matrix.connections), len(matrix.triggers), total(matrix)) == (240, 224, 480_000_000)
    assert {trigger.kind for trigger in matrix.triggers} == {"oneshot"}
    assert {c.trigger for c in matrix.connections} - {None} == {trigger.id for trigger in matrix.triggers}
    pairs = {(c.src, c.dst) for c in matrix.connections}
    assert pairs == {(i, j) for i in range(16) for j in range(16) if i != j}
    # Each host sends to one after the other: a message waits for the one before it, and 16 wait for none.
    waits = matrix.after()
    assert waits.count(()) == 16
    assert all(awaited in ((), (i - 1,)) for i, awaited in enumerate(waits))


def test_a_load_of_many_flows_of_the_same_pair_in_picoseconds() -> None:
    matrix = read("reps_40load_32.cm", "ps")
    assert (matrix.nodes, len(matrix.connections), total(matrix)) == (32, 836, 2_573_556_456)
    last = max(c.start or 0 for c in matrix.connections)
    assert (last, last / MS) == (3_499_686_000, pytest.approx(3.4997, abs=5e-5))
    assert len(matrix.connections) - len({(c.src, c.dst) for c in matrix.connections}) == 769
    assert gini(received(matrix)) == pytest.approx(0.0976, abs=5e-5)
    assert matrix.notes == ("start: read as picoseconds, the last is 3499.69 us",)


def test_the_unit_is_what_the_caller_says_and_an_unlikely_one_is_noted() -> None:
    wrong = read("reps_40load_32.cm")
    assert max(c.start or 0 for c in wrong.connections) == 3_499_686_000 * US
    assert 'which is long: if the file has picoseconds, say unit = "ps"' in wrong.notes[0]
    hot = packaged("package:movehot_us.cm")
    assert sorted({c.start for c in parse(hot, "hot").connections}) == [0, 300 * US, 600 * US, 900 * US]
    assert 'which is short: if the file has microseconds, say unit = "us"' in parse(hot, "hot", "ps").notes[0]


def test_a_multishot_starts_one_connection_for_each_signal() -> None:
    matrix = read("reps_alltoall4.cm", "ps")
    assert (matrix.nodes, len(matrix.connections), len(matrix.triggers)) == (32, 992, 224)
    triggered = Counter(c.trigger for c in matrix.connections if c.trigger is not None)
    assert (sum(triggered.values()), Counter(triggered.values())) == (864, {4: 192, 3: 32})
    assert {c.start for c in matrix.connections} == {None, 1_000_000}
    assert {trigger.kind for trigger in matrix.triggers} == {"multishot"}
    # Four at a time, as in the simulator: each waits for one of the four before it, and none for all of them.
    assert matrix.after()[:12] == ((), (), (), (), (0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,))


def test_four_long_flows() -> None:
    matrix = read("reps_imbalance.cm")
    assert (len(matrix.connections), total(matrix)) == (4, 128_000_000)


@pytest.mark.parametrize(
    ("name", "flows", "size"),
    [
        ("perm128_2MB", 128, 256_000_000), ("incast32_1MB_128n", 32, 32_000_000), ("movehot_us", 128, 128 << 18),
        ("moe32", 992, (961 << 16) + (31 << 18)), ("stag2", 2, 80_000_000), ("long16to1", 16, 160_000_000),
        ("long2to1", 2, 80_000_000),
    ],
)  # fmt: skip
def test_matrices_of_the_package(name: str, flows: int, size: int) -> None:
    matrix = parse(packaged(f"package:{name}.cm"), name)
    assert (matrix.nodes, len(matrix.connections), total(matrix)) == (128, flows, size)


# What starts when.


def test_a_oneshot_starts_all_that_wait_for_it() -> None:
    matrix = parse(
        body(
            "0->1 id 1 start 0 size 1 send_done_trigger 7",
            "1->2 id 2 trigger 7 size 1",
            "1->3 id 3 trigger 7 size 1",
            "trigger id 7 oneshot",
        ),
        "m",
    )
    assert matrix.after() == ((), (0,), (0,))


def test_a_barrier_waits_for_all_its_signals() -> None:
    text = body(
        "4->5 id 4 trigger 9 size 1",
        "0->1 id 1 start 0 size 1 send_done_trigger 9",
        "1->2 id 2 start 5.5 size 1 recv_done_trigger 9",
        "5->6 id 5 trigger 9 size 1",
        "trigger id 9 count 2 barrier",
    )
    matrix = parse(text, "m")
    assert matrix.triggers == (Trigger(9, "barrier", 2),)
    assert matrix.after() == ((1, 2), (), (), (1, 2))
    workload = from_connections(matrix, "write", 8, 2.0)
    (phase,) = workload.phases
    assert [(m.src, m.dst, m.start, m.after) for m in phase.messages] == [
        (4, 5, 0, (1, 2)), (0, 1, 0, ()), (1, 2, 11 * US, ()), (5, 6, 0, (1, 2)),
    ]  # fmt: skip
    assert phase.depth == 8
    assert workload.notes[1:] == ("recv_done_trigger: fires when the sender knows, as send_done_trigger does",)


def test_connections_behind_a_wide_barrier_share_what_they_wait_for() -> None:
    lines = [f"{i}->0 id {i} start 0 size 1 send_done_trigger 1" for i in range(1, 3001)]
    lines += [f"0->{i} id {i + 5000} trigger 1 size 1" for i in range(1, 3001)]
    text = f"Nodes 4000\nConnections 6000\nTriggers 1\n{chr(10).join(lines)}\ntrigger id 1 barrier count 3000\n"
    waits = parse(text, "m").after()
    assert waits[3000] == tuple(range(3000))
    assert {id(awaited) for awaited in waits[3000:]} == {id(waits[3000])}


def test_both_ends_of_a_connection_may_signal_one_barrier() -> None:
    matrix = parse(
        body(
            "0->1 id 1 start 0 size 1 send_done_trigger 3 recv_done_trigger 3",
            "1->2 id 2 trigger 3 size 1",
            "trigger id 3 barrier count 2",
        ),
        "m",
    )
    assert matrix.after() == ((), (0,))


def test_a_multishot_may_feed_itself_in_any_order_of_the_file() -> None:
    matrix = parse(
        body(
            "1->2 id 2 trigger 3 size 1 send_done_trigger 3",
            "1->3 id 3 trigger 3 size 1",
            "0->1 id 1 start 0 size 1 send_done_trigger 3",
            "trigger id 3 multishot",
        ),
        "m",
    )
    assert matrix.after() == ((2,), (0,), ())
    runnable(from_connections(matrix, "write", 1, 1.0))


def test_what_has_no_effect_is_noted() -> None:
    text = (
        "Nodes 4\nConnections 2\nTriggers 2\nFailures 1\n"
        "0->1 id 1 start 0 size 1 prio 3 send_done_trigger 1\n0->2 start 0 size 1\n"
        "trigger id 1 oneshot\ntrigger id 2 multishot\n"
        "failure switch_type AGG switch_id 2 link_id 0\n"
    )
    matrix = parse(text, "m")
    assert matrix.failures == (Failure("AGG", 2, 0),)
    assert matrix.connections[0].priority == 3
    notes = from_connections(matrix, "write", 1, 1.0).notes
    assert notes[1:] == (
        "triggers: 2 start nothing, the first is 1",
        "failures: 1 dead links are not modelled",
        "prio: priorities are not modelled",
    )


def test_the_fixed_order_of_a_multishot_is_noted() -> None:
    notes = from_connections(read("reps_alltoall4.cm", "ps"), "write", 16, 1.0).notes
    assert notes[-1] == "multishot: each of 864 connections waits for a fixed one of those that fire its trigger"


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.cm")))
def test_every_real_file_makes_a_workload_that_can_be_run(name: str) -> None:
    runnable(from_connections(read(name, lenient=True), "write", 1024, 1.0))


# What is written.


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.cm")))
@pytest.mark.parametrize("unit", ["us", "ps"])
def test_a_real_file_is_read_as_it_was_written(name: str, unit: Unit) -> None:
    matrix = read(name, unit, lenient=True)
    assert parse(write(matrix, unit), name, unit) == matrix
    if unit == "us":
        assert parse(write(matrix), name) == matrix


@pytest.mark.parametrize(
    "name", ["uet_alltoall_serial_16n.cm", "reps_alltoall4.cm", "reps_40load_32.cm", "outcast_incast.cm", "incast.cm"]
)
def test_files_of_htsim_are_written_as_htsim_writes_them(name: str) -> None:
    text = read_text(DATA / name).rstrip("\n") + "\n"
    assert write(parse(text, name)) == text
    assert write(parse(text, name, "ps"), "ps") == text


def test_picoseconds_become_decimals_of_microseconds() -> None:
    times = [0, 1, 10, US - 1, US, 1_500_000, 3_499_686_000, NEVER - 1]
    matrix = ConnectionMatrix(2, tuple(Connection(0, 1, 1, start=time) for time in times))
    words = [line.split()[2] for line in write(matrix).splitlines()[2:]]
    assert words[:7] == ["0", "0.000001", "0.00001", "0.999999", "1", "1.5", "3499.686"]
    assert parse(write(matrix), "m") == matrix


@st.composite
def matrices(draw: st.DrawFn) -> ConnectionMatrix:
    """Valid ones: every connection waits, if for anything, for some that are earlier in a hidden order."""
    nodes = draw(st.integers(2, 40))
    count = draw(st.integers(0, 12))
    small = st.integers(1, (1 << 31) - 1)
    ids = draw(st.lists(small, min_size=count, max_size=count, unique=True))
    hosts = st.lists(st.integers(0, nodes - 1), min_size=2, max_size=2, unique=True)
    connections = [
        Connection(*draw(hosts), draw(st.integers(1, 1 << 53)), ids[i], draw(st.integers(0, NEVER - 1)),
                   priority=draw(st.none() | st.integers(0, 9)))
        for i in range(count)
    ]  # fmt: skip
    triggers = []
    free_send, free_recv = list(range(count)), list(range(count))
    for number in draw(st.lists(small, max_size=5, unique=True)):
        first = draw(st.integers(0, count))
        sources = [(field, i) for field, free in (("send", free_send), ("recv", free_recv)) for i in free if i < first]
        kind = draw(st.sampled_from(["oneshot", "multishot", "barrier"]))
        waiting = [i for i in range(first, count) if connections[i].trigger is None and draw(st.booleans())]
        if not sources:
            continue
        chosen = draw(st.lists(st.sampled_from(sources), min_size=1, unique=True))
        chosen = chosen[:1] if kind == "oneshot" else chosen
        waiting = waiting[: len(chosen)] if kind == "multishot" else waiting
        for field, i in chosen:
            connections[i] = replace(connections[i], **{f"{field}_done_trigger": number})
            (free_send if field == "send" else free_recv).remove(i)
        for i in waiting:
            connections[i] = replace(connections[i], start=None, trigger=number)
        triggers.append(Trigger(number, kind, len(chosen) if kind == "barrier" else 0))
    for i in range(count):
        if connections[i].trigger is None and draw(st.booleans()):
            connections[i] = replace(connections[i], id=None)
    order = draw(st.permutations(range(count)))
    failures = draw(
        st.lists(st.builds(Failure, st.sampled_from(["TOR", "AGG", "CORE"]), st.integers(0, 99), st.integers(0, 99)))
    )
    return ConnectionMatrix(nodes, tuple(connections[i] for i in order), tuple(triggers), tuple(failures))


@given(matrices(), st.sampled_from(["us", "ps"]))
def test_what_was_written_is_read(matrix: ConnectionMatrix, unit: Unit) -> None:
    again = parse(write(matrix, unit), "m", unit)
    assert again == matrix
    assert parse(write(matrix), "m") == matrix
    if matrix.connections:
        (phase,) = from_connections(again, "write", 16, 1.0).phases
        short = tuple(replace(message, size=1) for message in phase.messages)
        runnable(Workload(matrix.nodes, (replace(phase, messages=short),)))


# Mistakes.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Connections 0\n", "m: Nodes is missing"),
        ("Nodes 1\n", "m, line 1: Nodes = '1': allowed are whole numbers from 2 to"),
        ("Nodes two\n", "m, line 1: Nodes = 'two': allowed"),
        ("Nodes 2 3\n", "m, line 1: 'Nodes 2 3': Nodes and one number are needed"),
        ("Nodes 2\nNodes 3\n", "m, line 2: Nodes is in line 1 already"),
        ("Nodes 2\n0->1 start 0 size 1\nConnections 1", "m, line 3: Connections: it must be in front of all"),
        ("0->1 start 0 size 1\nNodes 2\n", "m, line 1: Nodes is missing: it must be in front of all connections"),
        ("Nodes 2\n0->1 start 0 size 1\n", "m: Connections 0: the file has 1, and does not say"),
        ("Nodes 2\nConnections 2\n0->1 start 0 size 1\n", "m, line 2: Connections 2: the file has 1"),
        ("Nodes 2\nConnections 0\nTriggers 1\n", "m, line 3: Triggers 1: the file has 0"),
        ("Nodes 2\nConnections 0\nFailures 1\n", "m, line 3: Failures 1: the file has 0"),
        (body("garbage"), "m, line 4: 'garbage': allowed are Nodes, Connections, Triggers, Failures and a number, a"),
        (body("0 -> 1 start 0 size 1"), "m, line 4: '0 -> 1 start 0 size 1': allowed are"),
        (body("0->1"), "m, line 4: size is missing: allowed are 1 to"),
        (body("0->16 start 0 size 1"), "m, line 4: 0->16: to = '16': allowed are whole numbers from 0 to 15"),
        (body("x->1 start 0 size 1"), "m, line 4: x->1: from = 'x': allowed are whole numbers from 0 to 15"),
        (body("-1->1 start 0 size 1"), "m, line 4: -1->1: from = '-1': allowed"),
        (body("0->1->2 start 0 size 1"), "m, line 4: 0->1->2: to = '1->2': allowed"),
        (body("3->3 start 0 size 1"), "m, line 4: 3->3: host 3 sends to itself"),
        (body("0->1 start -1 size 1"), "m, line 4: start = '-1' us: allowed are whole picoseconds from 0"),
        (body("0->1 start nan size 1"), "m, line 4: start = 'nan' us: allowed"),
        (body("0->1 start 0.0000001 size 1"), "m, line 4: start = '0.0000001' us: allowed are whole picoseconds"),
        (body("0->1 start 1e30 size 1"), "m, line 4: start = '1e30' us: allowed"),
        (body("0->1 start 0 size 0"), "m, line 4: size = '0': allowed are whole numbers from 1"),
        (body("0->1 start 0 size 1.5"), "m, line 4: size = '1.5': allowed"),
        (body("0->1 start 0 size"), "m, line 4: size is the last word: its value is missing"),
        (body("0->1 start 0 size 1 size 2"), "m, line 4: size is there twice"),
        (body("0->1 start 0 size 1 addon"), "m, line 4: 'addon' is unknown; known: id, start, trigger, size,"),
        (body("0->1 size 1"), "m, line 4: neither start nor trigger: exactly one of them is allowed"),
        (body("0->1 id 1 start 0 trigger 1 size 1"), "m, line 4: both start and trigger: exactly one"),
        (body("0->1 id 0 start 0 size 1"), "m, line 4: id = '0': allowed are whole numbers from 1"),
        (body("0->1 id 5 start 0 size 1", "0->1 id 5 start 0 size 1"), "m, line 5: id = 5: it is in line 4 already"),
        (body("0->1 trigger 1 size 1", "trigger id 1 oneshot"), "m, line 4: id is missing: a connection that a trig"),
        (body("trigger id 1"), "m, line 4: a trigger has one kind, allowed are oneshot, multishot, barrier"),
        (body("trigger id 1 oneshot multishot"), "m, line 4: a trigger has one kind"),
        (body("trigger id 1 twice"), "m, line 4: a trigger has one kind"),
        (body("trigger oneshot"), "m, line 4: id is missing"),
        (body("trigger id 0 oneshot"), "m, line 4: id = '0': allowed"),
        (body("trigger id 1 barrier"), "m, line 4: a barrier needs a count"),
        (body("trigger id 1 barrier count 0"), "m, line 4: count = '0': allowed are whole numbers from 1"),
        (body("trigger id 1 oneshot count 2"), "m, line 4: a oneshot has no count"),
        (body("trigger id 1 oneshot", "trigger id 1 oneshot"), "m, line 5: trigger 1 is in line 4 already"),
        (body("0->1 id 1 trigger 3 size 1"), "m, line 4: 0->1: trigger 3 is not declared: the file declares none"),
        (
            body("0->1 id 1 start 0 size 1 recv_done_trigger 3", "trigger id 4 oneshot"),
            "m, line 4: 0->1: trigger 3 is not declared: 1 are, with numbers from 4 to 4",
        ),
        (
            body("0->1 id 1 trigger 3 size 1", "trigger id 3 oneshot"),
            "m, line 5: trigger 3 can never fire: a oneshot takes one signal, and 0 connections signal it",
        ),
        (
            body(
                "0->1 id 1 start 0 size 1 send_done_trigger 3", "0->2 id 2 start 0 size 1 send_done_trigger 3",
                "0->3 id 3 trigger 3 size 1", "trigger id 3 oneshot",
            ),
            "m, line 7: trigger 3: a oneshot takes one signal, and 2 connections signal it",
        ),
        (
            body(
                "0->1 id 1 start 0 size 1 send_done_trigger 3", "0->3 id 3 trigger 3 size 1",
                "trigger id 3 barrier count 2",
            ),
            "m, line 6: trigger 3 can never fire often enough: a barrier takes as many signals as its count = 2, and 1",
        ),
        (
            body(
                "0->1 id 1 start 0 size 1 send_done_trigger 3", "0->3 id 3 trigger 3 size 1",
                "0->4 id 4 trigger 3 size 1", "trigger id 3 multishot",
            ),
            "m, line 7: trigger 3 can never fire often enough: a multishot takes a signal for each connection",
        ),
        (
            body("0->1 id 1 trigger 3 size 1 send_done_trigger 3", "trigger id 3 oneshot"),
            "m, line 4: 0->1: it can never begin: trigger 3 waits for itself",
        ),
        (
            body(
                "4->5 id 9 start 0 size 1", "0->1 id 1 trigger 3 size 1 send_done_trigger 4",
                "0->2 id 2 trigger 4 size 1 recv_done_trigger 3", "trigger id 3 oneshot", "trigger id 4 oneshot",
            ),
            "m, line 5: 0->1: it can never begin: triggers 3, 4 wait for each other",
        ),
        ("Nodes 2\nFailures 1\nfailure switch_id 1 link_id 1\n", "m, line 3: switch_type is missing: a failure needs"),
        ("Nodes 2\nfailure switch_type NIC switch_id 1 link_id 1\n", "switch_type = 'NIC': allowed are TOR, AGG, CORE"),
        ("Nodes 2\nfailure switch_type TOR switch_id x link_id 1\n", "m, line 2: switch_id = 'x': allowed"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_value(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, "m")


def test_lenient_forgives_counts_and_nothing_else() -> None:
    text = "Nodes 4\nConnections 7\n# four hosts\n0->1 start 0 size 1 # the only one\n\n"
    matrix = parse(text, "m", lenient=True)
    assert matrix.notes[0] == "warning: m, line 2: Connections 7: the file has 1"
    with pytest.raises(ConfigError, match="sends to itself"):
        parse("Nodes 4\n1->1 start 0 size 1", "m", lenient=True)
    with pytest.raises(ConfigError, match="line 4: 0->1: trigger 3 can never fire: a oneshot takes one signal, and 0"):
        parse(body("0->1 id 1 trigger 3 size 1"), "m", lenient=True)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="unit = 'ns': allowed are us, ps"):
        parse(body(), "m", "ns")  # type: ignore[arg-type]


@given(st.text(max_size=60) | st.from_regex(r"Nodes 4\n([0-4]->[0-4]|trigger|id|size|start| |[0-9]|\n){0,12}"))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        told = "m" if parse(text, "m").nodes else ""
    except ConfigError as error:
        told = str(error)
    assert told.startswith("m")
