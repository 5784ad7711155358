"""Workload sections of scenario files: what is refused, where files are found, and runs of what files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from testbed import runner, scenario
from testbed.progress import Silent
from testbed.workloads.base import Message, Workload, runnable
from testbed.workloads.presets import PRESETS
from testbed.workloads.sections import KINDS, PresetWorkload
from transport.clock import US
from transport.errors import ConfigError

DATA = Path(__file__).resolve().parents[2] / "data"


def batch_row(step: int, chosen: list[list[int]]) -> str:
    row = {"step": step, "layer": 0, "rank": 0, "num_tokens": len(chosen), "topk": len(chosen[0])}
    return json.dumps({**row, "top_indices": chosen})


TRACE = "\n".join(
    batch_row(step, chosen)
    for step, chosen in enumerate(([[0, 1]] * 3, [[0, 1], [2, 3], [1, 3]], [[3, 1], [2, 0], [1, 0]]))
)


def text(kind: str, *keys: str) -> str:
    return "\n".join(['name = "mine"', 'summary = "a workload"', "[workload]", f'kind = "{kind}"', *keys])


def parsed(kind: str, *keys: str) -> scenario.Scenario:
    return scenario.parse(text(kind, *keys), "mine.toml", (), DATA)


def made(kind: str, *keys: str) -> Workload:
    return parsed(kind, *keys).variants[0].settings.workload.make(1, 1.0)


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("allreduce", ["size = 7"], "mine.toml, line 5: workload: size = 7: allowed is at least 8 for 8 ranks"),
        ("allreduce", ["size = 0", 'algorithm = "tree"'], "line 5: workload: size = 0: allowed is at least 1"),
        ("allreduce", ['algorithm = "mesh"'], "line 5: workload.algorithm = 'mesh': input should be 'ring' or 'tree'"),
        ("one_to_n", ["ranks = 1"], "line 5: workload.ranks = 1"),
        ("alltoall", ["ranks = 257"], "line 5: workload.ranks = 257: .* 256"),
        ("m2n", ["tokens = [1, 2]"], "line 5: workload: tokens has 2 numbers: allowed is one for all, or 6"),
        ("m2n", ["tp = 3"], "line 5: workload: tp = 3: allowed are the divisors of hidden = 4096"),
        ("m2n", ["weights = [1.0]"], "line 5: workload: weights has 1 numbers: allowed are 2"),
        ("m2n", ["weights = [1.0, 1.5]"], "line 5: workload: weights have the sum 2.5: allowed is top_k = 2"),
        ("m2n", ["gini = 0.6"], "line 5: workload: gini = 0.6: too high for 2 experts"),
        ("m2n", ["ranks = 8"], "line 5: key workload.ranks is unknown; known: kind, attention, experts"),
        ("moe_preset", ['preset = "gpt"'], "line 5: workload.preset = 'gpt': input should be 'deepep-ll'"),
        ("moe_preset", [], "key workload.preset is missing"),
        ("moe_preset", ['preset = "dbrx"', "ranks = 5"], "line 6: workload: ranks = 5: there are 16 experts"),
        ("moe_preset", ['preset = "dbrx"', "gini = 0.9"], "line 6: workload: gini = 0.9: too high"),
        ("moe_preset", ['preset = "dbrx"', 'popularity = "wild"'], "line 6: workload.popularity = 'wild': input"),
        ("moe_preset", ['preset = "dbrx"', "depth = 0"], "line 6: workload.depth = 0"),
        ("moe_preset", ['preset = "deepep-ll"', "hidden = 64"], "line 6: workload: hidden = 64: allowed are"),
        ("matrix", [], "key workload.file is missing"),
        ("matrix", ['file = "a\\u0000b"'], "cannot be read: embedded null byte"),
        ("matrix", ['file = "none"'], "mine.toml, line 5: workload: none cannot be read: No such file"),
        ("matrix", ['file = "moe/eplb_readme_2x12.csv"'], r"line 5: .*eplb_readme_2x12\.csv, line 1: 12 entries"),
        ("matrix", ['file = "ucc/transfer_matrix_8"', "ranks = 3"], "line 6: workload: ranks = 3: the matrix has 8"),
        ("counts", ['file = "moe/eplb_readme_2x12.csv"', "ranks = 4"], "workload: top_k is missing"),
        ("counts", ['file = "moe/eplb_readme_2x12.csv"', "top_k = 13", "ranks = 4"], "top_k = 13: layer 0 of"),
        ("counts", ['file = "moe/eplb_readme_2x12.csv"', "top_k = 2"], "ranks = 8: there are 12 experts, allowed are"),
        ("counts", ['file = "moe/eplb_readme_2x12.csv"', "top_k = 2", "layers = [2]"], "layer = 2: allowed are 0, 1"),
        ("counts", ['file = "moe/eplb_readme_2x12.csv"', 'model = "x"'], "line 6: workload: model = 'x': allowed are"),
        ("cm", [], "key workload.file is missing"),
        ("cm", ['file = "htsim/one.cm"', 'unit = "ns"'], "line 6: workload.unit = 'ns': input should be 'us' or 'ps'"),
        ("cm", ['file = "htsim/one.cm"', "ranks = 16"], "line 6: key workload.ranks is unknown; known: file, kind"),
        ("cm", ['file = "htsim/one.cm"', "depth = 1025"], "line 6: workload.depth = 1025"),
        ("cm", ['file = "htsim/uet_a2a.cm"'], r"line 5: workload: .*uet_a2a\.cm, line 2: Connections 3600: the file"),
        ("cm", ['file = "package:none.cm"'], "line 5: workload: 'package:none.cm' does not come with the package; kno"),
        ("cm", ['file = "package:../NOTICE.md"'], "'package:../NOTICE.md' does not come with the package"),
        ("trace", ['file = "ucc/transfer_matrix_8"'], r"transfer_matrix_8, line 1: not JSON"),
        ("trace", ['file = "pcap/rxe_kernel_6.1.pcap"'], r"rxe_kernel_6\.1\.pcap, line 1: byte 0xb2 is not UTF-8"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_file_line_key_and_what_is_allowed(kind: str, keys: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(kind, *keys)


def test_more_messages_outstanding_than_the_send_queue_holds_are_refused() -> None:
    source = text("moe_preset", 'preset = "deepep-ll"', "depth = 32") + "\n[transport]\nsq_depth = 16\n"
    with pytest.raises(ConfigError, match=r"line 6: workload\.depth = 32: at most transport\.sq_depth = 16"):
        scenario.parse(source, "mine.toml")


def test_every_kind_has_a_section_of_its_name() -> None:
    assert list(KINDS) == [
        "pair", "incast", "one_to_n", "permutation", "moving_incast", "alltoall", "allreduce", "m2n", "moe",
        "moe_preset", "counts", "matrix", "trace", "cm",
    ]  # fmt: skip


def test_a_preset_runs_few_layers_unless_asked_and_takes_what_is_given() -> None:
    workload = made("moe_preset", 'preset = "dbrx"', "tokens = 8", "hidden = 64", "ranks = 4")
    assert (workload.ranks, len(workload.phases)) == (4, 4)
    assert {m.size % 128 for phase in workload.phases for m in phase.messages} == {0}
    assert len(made("moe_preset", 'preset = "mixtral-8x22b"', "tokens = 1", "layers = 9").phases) == 18


def test_every_preset_can_be_asked_for() -> None:
    assert get_args(PresetWorkload.model_fields["preset"].annotation) == tuple(PRESETS)


def test_phases_without_messages_are_left_out_and_a_workload_of_such_is_refused(tmp_path: Path) -> None:
    at_home = batch_row(0, [[0], [1]])
    abroad = batch_row(1, [[1], [0]])
    (tmp_path / "t").write_text(f"{at_home}\n{abroad}\n")
    keys = (f'file = "{tmp_path}/t"', "ranks = 2", "experts = 2")
    assert [phase["name"] for phase in run("trace", *keys)["phases"]] == [
        "step 1 layer 0 dispatch", "step 1 layer 0 combine",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="workload: no rank has anything to send to another"):
        run("trace", *keys, "steps = 1")


def test_a_message_longer_than_the_transport_carries_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="its longest message has 8589934592 B: allowed are at most 4294967296"):
        run("m2n", "attention = 1", "experts = 1", "tokens = 65536", "hidden = 65536", "top_k = 1", "layers = 1")


def test_weights_of_an_exchange_may_be_given() -> None:
    workload = made(
        "m2n", "attention = 1", "experts = 2", "tokens = [10]", "weights = [0.5, 1.5]", "hidden = 8", "tp = 2"
    )
    assert [(m.src, m.dst, m.size) for m in workload.phases[0].messages] == [
        (0, 1, 40), (0, 2, 120), (1, 0, 40), (2, 0, 120),
    ]  # fmt: skip


def test_a_file_is_looked_for_beside_the_scenario_and_then_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "scenarios"
    beside.mkdir()
    (beside / "mine.toml").write_text(text("matrix", 'file = "m.txt"'))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"m\.txt cannot be read"):
        scenario.load("scenarios/mine.toml")
    (tmp_path / "m.txt").write_text("0 1\n2 0\n")
    assert size_of(scenario.load("scenarios/mine.toml")) == 3
    (beside / "m.txt").write_text("0 10\n20 0\n")
    assert size_of(scenario.load("scenarios/mine.toml")) == 30
    assert size_of(scenario.load("scenarios/mine.toml", [f"file={tmp_path / 'm.txt'}"])) == 3


def size_of(found: scenario.Scenario) -> int:
    return found.variants[0].settings.workload.make(1, 1.0).phases[0].logical_bytes


def run(kind: str, *keys: str) -> dict[str, Any]:
    result = runner.run(parsed(kind, *keys), "loopback", Silent())
    assert result.passed
    return {**result.to_json(), "notes": result.variants[0].notes}


def test_a_matrix_is_run_and_its_hottest_receiver_named() -> None:
    result = run("matrix", 'file = "ucc/transfer_matrix_16"', "unit = 0.001")
    (phase,) = result["phases"]
    assert phase["hottest_rank"] == 6
    assert phase["logical_bytes"] == pytest.approx((1_697_680_000 - 3_840_000) / 1000, abs=256)
    assert "3840 B of self traffic" in result["notes"][0]


def test_a_matrix_in_which_rank_0_is_silent_is_run_and_one_without_traffic_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("0 0 0\n0 0 500\n0 0 0\n")
    (phase,) = run("matrix", f'file = "{tmp_path}/m"')["phases"]
    assert (phase["hottest_rank"], phase["hottest_share_percent"]) == (2, 100.0)
    (tmp_path / "m").write_text("5 0\n0 5\n")
    with pytest.raises(ConfigError, match="no rank has anything to send"):
        parsed("matrix", f'file = "{tmp_path}/m"')


def test_a_connection_matrix_is_one_phase_with_its_starts_triggers_and_notes() -> None:
    workload = made("cm", 'file = "htsim/reps_alltoall4.cm"', 'unit = "ps"', 'op = "write_imm"', "depth = 4")
    (phase,) = runnable(workload).phases
    assert (workload.ranks, len(phase.messages), phase.depth, phase.interval) == (32, 992, 4, 0)
    assert phase.messages[0] == Message(26, 5, 2_000_000, "write_imm", start=1_000_000)
    assert phase.messages[4] == Message(26, 10, 2_000_000, "write_imm", after=(0,))
    assert workload.notes[0] == "start: read as picoseconds, the last is 1 us"


def test_a_connection_matrix_with_a_wrong_header_is_read_if_asked() -> None:
    workload = made("cm", 'file = "htsim/uet_a2a.cm"', "lenient = true")
    assert (workload.ranks, len(workload.phases[0].messages)) == (16, 240)
    assert workload.notes[0].startswith("warning: ")


def test_a_file_of_the_package_is_named_by_its_prefix() -> None:
    workload = made("cm", 'file = "package:movehot_us.cm"')
    (phase,) = workload.phases
    assert (workload.ranks, phase.depth, phase.messages[0].op) == (128, 1024, "write")
    assert sorted({m.start // US for m in phase.messages}) == [0, 300, 600, 900]
    section = parsed("cm", 'file = "package:movehot_us.cm"').variants[0].settings.workload
    assert sorted({m.start // US for m in section.make(1, 2.5).phases[0].messages}) == [0, 750, 1500, 2250]


def test_a_connection_matrix_may_have_more_hosts_than_other_kinds_have_ranks(tmp_path: Path) -> None:
    line = "Connections 1\n0->16383 start 0 size 1\n"
    (tmp_path / "m.cm").write_text("Nodes 16384\n" + line)
    assert made("cm", f'file = "{tmp_path}/m.cm"').ranks == 16384
    (tmp_path / "m.cm").write_text("Nodes 16385\n" + line)
    with pytest.raises(ConfigError, match=r"m\.cm: Nodes 16385: allowed are 2 to 16384"):
        parsed("cm", f'file = "{tmp_path}/m.cm"')


def test_a_connection_matrix_without_starts_or_triggers_is_run() -> None:
    result = run("cm", 'file = "htsim/one.cm"')
    assert [phase["logical_bytes"] for phase in result["phases"]] == [2_000_000]
    assert result["notes"] == ["start: read as microseconds, the last is 0 us"]


def test_counts_of_a_file_are_run() -> None:
    result = run("counts", 'file = "moe/eplb_readme_2x12.csv"', "ranks = 4", "top_k = 2", "tokens = 200", "hidden = 8")
    assert [phase["name"] for phase in result["phases"]] == [
        f"layer {layer} {half}" for layer in (0, 1) for half in ("dispatch", "combine")
    ]
    # Most loaded blocks of three experts: 4, 1, 3 in layer 0 and 5, 6, 7 and so on in layer 1.
    assert "(measured 0.330)" in result["notes"][0]
    assert "(measured 0.387)" in result["notes"][1]


def test_the_table_of_the_package_is_counts_like_any_other() -> None:
    table = Path(scenario.__file__).parent / "workloads" / "data" / "olmoe_mixtral_layer_expert_counts.csv"
    keys = ('model = "olmoe"', 'domain = "github"', "layers = [7]", "tokens = 64", "hidden = 128")
    from_file = made("counts", f'file = "{table}"', *keys)
    assert from_file == made("moe", *keys)


def test_a_trace_is_run_with_and_without_its_warm_up(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(TRACE)
    keys = (f'file = "{tmp_path}/t.jsonl"', "ranks = 2", "experts = 4", "steps = 5")
    whole = run("trace", *keys)
    rest = run("trace", *keys, "drop_warmup = true")
    assert (len(whole["phases"]), len(rest["phases"])) == (6, 4)
    assert whole["notes"][0].endswith("in which every token has the same experts")
    assert rest["notes"][0].endswith("in which every token has the same experts; left out")
    (tmp_path / "t.jsonl").write_text(TRACE.splitlines()[0])
    with pytest.raises(ConfigError, match=r"drop_warmup = true: every pass of .*t\.jsonl is a warm-up"):
        parsed("trace", *keys, "drop_warmup = true")


def test_the_hottest_receiver_of_an_exchange_is_an_expert_rank_or_the_busiest_attention_rank() -> None:
    skewed = run("m2n", "tokens = 8", "layers = 1", "weights = [0.5, 1.5]")
    assert skewed["phases"][0]["hottest_rank"] == 7
    lopsided = run("m2n", "attention = 2", "experts = 5", "tokens = [2, 30]", "layers = 1")
    assert lopsided["phases"][0]["hottest_rank"] == 1


def test_more_ranks_than_an_octet_counts_are_run() -> None:
    result = runner.run(parsed("one_to_n", "ranks = 256", "size = 1", "messages = 1"), "loopback", Silent())
    assert result.passed
    assert result.variants[0].metrics["messages"] == 255
