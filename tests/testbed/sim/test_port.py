"""One output port and its link, to the picosecond."""

from __future__ import annotations

import pytest

from testbed.sim.pfc import Ingress
from testbed.sim.port import Pool
from testbed.sim.spec import PfcSpec, PoolSpec, QueueSpec
from tests.testbed.sim.bench import BYTE, RATE, Bench, Onward
from transport.errors import ConfigError
from transport.packet import CE, NOT_ECT

FULL = 4160 * BYTE
SMALL = QueueSpec(data_bytes=3 * 4160, control_bytes=4096)


def test_a_frame_takes_its_bytes_at_the_rate_and_then_the_delay() -> None:
    bench = Bench(delay=1000)
    bench.send(0)
    bench.send(1, 100)
    assert bench.run() == [(FULL + 1000, 0), (FULL + 164 * BYTE + 1000, 1)]


def test_a_rate_without_whole_picoseconds_a_byte_is_exact_over_many_frames() -> None:
    bench = Bench(rate=3_000_000_007)
    for i in range(3):
        bench.send(i, 936)
    took = 1000 * 8_000_000_000_000 // 3_000_000_007
    assert [when for when, _ in bench.run()] == [took, 2 * took, 3 * took]


def test_a_frame_that_waits_for_nothing_is_one_event() -> None:
    bench = Bench()
    for i in range(10):
        bench.at(i * 2 * FULL, lambda now, i=i: bench.send(i))
    bench.run()
    assert bench.loop.fired == 10 + 10


def test_control_goes_first_but_does_not_interrupt() -> None:
    bench = Bench()
    for i in range(3):
        bench.send(i)
    bench.send(9, 0, control=True)
    assert [seq for _, seq in bench.run()] == [0, 9, 1, 2]


def test_what_the_queue_has_no_room_for_is_dropped_and_counted() -> None:
    bench = Bench(SMALL)
    for i in range(6):
        bench.send(i)
    assert [seq for _, seq in bench.run()] == [0, 1, 2, 3]  # one in transmission, three waiting
    assert (bench.port.dropped, bench.port.peak, bench.port.packets) == (2, 3 * 4160, 4)
    made = bench.frames.made
    assert [bench.frames.take().packet for _ in range(made)] == [None] * made  # all are free again
    assert bench.frames.made == made == 5


def test_trimming_keeps_the_header_and_sends_it_first() -> None:
    bench = Bench(QueueSpec(data_bytes=4160, control_bytes=4096, trim=True))
    for i in range(4):
        bench.send(i)
    assert bench.run() == [(FULL, 0), (FULL + 64 * BYTE, 2), (FULL + 128 * BYTE, 3), (2 * FULL + 128 * BYTE, 1)]
    assert [packet.trimmed for packet in bench.sink.packets] == [False, True, True, False]
    assert (bench.port.trimmed, bench.port.dropped) == (2, 0)


def test_a_trimmed_frame_does_not_wait_for_the_tail_that_was_cut_off() -> None:
    bench = Bench(QueueSpec(data_bytes=4160, control_bytes=4096, trim=True))
    bench.send(0)
    bench.send(1)
    late = bench.frame(2)
    late.tail = 50 * FULL  # its last bit is still far away
    bench.port.send(late, 0)
    assert bench.run() == [(FULL, 0), (FULL + 64 * BYTE, 2), (2 * FULL + 64 * BYTE, 1)]


def test_a_full_control_queue_drops_also_what_was_trimmed() -> None:
    bench = Bench(QueueSpec(data_bytes=4160, control_bytes=4096, trim=True))
    for i in range(100):
        bench.send(i)
    bench.run()
    assert bench.port.control_dropped == 98 - 4096 // 64


def test_one_threshold_marks_by_what_a_frame_leaves_behind() -> None:
    bench = Bench(QueueSpec(ecn_low=4160, ecn_high=4160))
    for i in range(5):
        bench.send(i)
    bench.run()
    # 0 leaves at once and nothing is behind it; 1 leaves three behind, 2 two, 3 one.
    assert [packet.ecn == CE for packet in bench.sink.packets] == [False, True, True, False, False]
    assert bench.port.marked == 2


def test_what_cannot_carry_a_mark_is_not_marked() -> None:
    bench = Bench(QueueSpec(ecn_low=0, ecn_high=0))
    for i in range(3):
        frame = bench.frame(i)
        frame.packet.ecn = NOT_ECT
        bench.port.send(frame, 0)
    bench.run()
    assert [packet.ecn for packet in bench.sink.packets] == [NOT_ECT] * 3


@pytest.mark.parametrize(("behind", "share"), [(20, 0.0), (40, 0.25), (60, 0.5), (80, 0.75), (100, 1.0)])
def test_between_two_thresholds_the_share_of_marks_rises_linearly(behind: int, share: float) -> None:
    bench = Bench(QueueSpec(ecn_low=20_000, ecn_high=100_000))
    bench.port.data.size = behind * 1000  # as if so much stood there
    for i in range(4000):
        bench.port.free_at = 0  # and yet nothing is in its way
        bench.send(i)
    assert abs(bench.port.marked / 4000 - share) < 0.03


def test_a_new_rate_holds_from_the_next_frame_on() -> None:
    bench = Bench()
    bench.send(0)
    bench.send(1)
    bench.port.set_rate(RATE // 4)
    assert bench.run() == [(FULL, 0), (5 * FULL, 1)]


def test_a_link_that_is_down_loses_everything_and_one_with_loss_its_share() -> None:
    bench = Bench()
    bench.link.up = False
    bench.send(0)
    bench.run()
    bench.link.up = True
    bench.link.loss = round(0.1 * (1 << 32))
    for i in range(5000):
        bench.send(i)
    bench.run()
    assert bench.link.lost - 1 == 5000 - len(bench.sink.got)
    assert 400 < bench.link.lost < 600


def test_a_link_does_not_overtake_itself_when_its_delay_shrinks() -> None:
    bench = Bench(delay=10 * FULL)
    bench.send(0)
    bench.link.delay = 0
    bench.send(1)
    assert [seq for _, seq in bench.run()] == [0, 1]


def test_cut_through_forwards_at_the_header_and_ends_not_before_the_tail() -> None:
    first = Bench(QueueSpec(cut_through=True), delay=500)
    second = Bench(delay=500)
    second.loop, second.port.loop, second.link.loop = first.loop, first.loop, first.loop
    first.link.node = Onward(second)
    first.send(0)
    first.run()
    assert second.sink.got == [(64 * BYTE + 500 + FULL + 500, 0)]
    slow = Bench(QueueSpec(cut_through=True), rate=RATE // 4, delay=500)
    second.sink.got.clear()
    slow.loop = slow.port.loop = slow.link.loop = first.loop
    slow.link.node = Onward(second)
    begin = first.loop.now
    slow.send(1)
    slow.run()
    assert second.sink.got == [(begin + 4 * FULL + 500 + 500, 1)]  # its last bit comes in late


def test_a_paused_port_holds_data_and_lets_control_pass() -> None:
    bench = Bench()
    bench.send(0)
    bench.send(1)
    bench.port.pause(0, True)
    bench.at(10 * FULL, lambda now: bench.send(2, 0, control=True))
    bench.at(20 * FULL, lambda now: bench.port.pause(now, False))
    assert bench.run() == [(FULL, 0), (10 * FULL + 64 * BYTE, 2), (21 * FULL, 1)]
    assert (bench.port.pauses, bench.port.paused_for) == (1, 20 * FULL)


def test_an_ingress_stops_its_upstream_in_time_and_starts_it_again() -> None:
    bench = Bench()
    ingress = Ingress(bench.loop, bench.port, delay=100, xoff=2 * 4160, xon=4160, headroom=4160)
    held = [bench.frame(i) for i in range(4)]
    assert [ingress.take(frame, 0) for frame in held] == [True, True, True, False]
    assert (ingress.dropped, ingress.peak) == (1, 3 * 4160)
    bench.run()
    assert bench.port.paused
    assert bench.loop.now == 100
    ingress.release(4160, 200)
    assert bench.loop.next() > 1 << 60
    ingress.release(4160, 300)
    bench.run()
    assert not bench.port.paused


def test_a_shared_buffer_gives_a_queue_its_share_of_what_is_left() -> None:
    bench = Bench()
    bench.port.pool = Pool(10 * 4160, 256)  # alpha 1: half of an empty pool, for one queue
    for i in range(12):
        bench.send(i)
    assert bench.port.pool.used == bench.port.data.size == 5 * 4160
    assert bench.port.dropped == 6
    bench.run()
    assert bench.port.pool.used == 0


def test_telemetry_stamps_queue_bytes_time_and_rate() -> None:
    bench = Bench(QueueSpec(int_telemetry=True))
    bench.send(0)
    bench.send(1)
    bench.run()
    assert [tuple(packet.hops[0]) for packet in bench.sink.packets] == [
        (0, 4160, 0, RATE), (0, 2 * 4160, FULL, RATE),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QueueSpec(data_bytes=0), r"queue data_bytes = 0: allowed are 4096 to"),
        (lambda: QueueSpec(ecn_low=10, ecn_high=5), r"ecn_high = 5: allowed are 10 to .* not below ecn_low"),
        (lambda: PfcSpec(100, 200), r"pfc_xon = 200: allowed are 0 to 100 bytes, not above pfc_xoff"),
        (lambda: PoolSpec(1 << 20, 0.0), r"shared_alpha = 0\.0: allowed are"),
    ],
)
def test_what_no_switch_could_be_is_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        make()
