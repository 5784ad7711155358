"""Peers that die, stand still and come back in the middle of transfers, over real sockets, round by round.

    python -m tests.robustness.chaos --rounds 200 --seed 1

Two processes (tests/robustness/peer.py) connect several queue pairs and transfer with all operations in both
directions. At a random moment, also during bootstrap and close, one of them is

    kill            killed (SIGKILL), and started again when the other has noticed
    restart         killed, and at once started again under the same address and ports
    stop            stopped (SIGSTOP) until the other has given up, then continued (SIGCONT)
    pause           stopped for less than that
    stop and kill   stopped, killed some time later, and started again

Held to, in every round: each posted request completed exactly once; failed ones did so within the give-up time and say
peer, path and cause; ports are free as soon as the process is gone; what a continued process still sends is dropped and
counted; both processes can connect again at once, and every byte compares equal, also while all that was captured of
the old connections is sent again, as it was and onto the new queue pairs, each packet of which is dropped and counted;
after the round, no process has more descriptors, connections or peers than before the first. A pause fails nothing.

Prints one JSON object; the exit status is 0 if all of that held. What happens follows from the seed, when it happens
from the machine. The addresses, in 127.0.0.0/8, follow from the process id, so several can run side by side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.processes import rank_environment
from tests.robustness.attacks import DROPS
from tests.robustness.peer import ENTROPIES, PORT
from transport.bootstrap import Channel
from transport.errors import PolyroceError
from transport.wire import ROCE_PORT

EVENTS = ("kill", "restart", "stop", "pause", "stop and kill")
#: Seconds that a machine with other things to do may add to any wait.
SLACK = 20.0
#: Operations and messages of each queue pair that must have been compared before replays begin.
WARM = 24
#: What replays may move: the real peer is late with probes too, and refuses what it was sent with a wrong key.
NOISE = ("dropped_bad_probe", "dropped_bad_reject")
#: The resident set of a process that lives through many rounds may grow this much after its third.
GROWTH = 32 << 20


class Wrong(AssertionError):
    """Something that must hold does not."""


def require(condition: object, what: object) -> None:
    if not condition:
        raise Wrong(what)


class Process:
    """A peer process at `address`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  end closes it
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.robustness.peer", address, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors,
                env=rank_environment(),
            )  # fmt: skip
        self.channel = Channel(ours, f"peer {address}", patience=SLACK, max_line=64 << 20)
        self.rounds = 0
        self.settled = 0  # bytes of the resident set after three rounds
        self.seen: dict[str, int] = {}  # counters after the round before
        try:
            self._receive("ready")
            self.descriptors = self.status()["descriptors"]
        except BaseException:
            self.end()
            raise

    def ask(self, kind: str, **more: Any) -> dict[str, Any]:
        """Order and answer."""
        self.tell(kind, **more)
        return self.answer()

    def tell(self, kind: str, **more: Any) -> None:
        self.channel.send({"type": kind, **more})

    def answer(self) -> dict[str, Any]:
        return self._receive("done")

    def status(self) -> dict[str, Any]:
        return self.ask("status")

    def generation(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["generations"][str(number)]
        return found

    def dropped(self, *names: str) -> int:
        """Sum of the counters with these names."""
        counters = self.status()["counters"]
        return sum(counters[name] for name in names)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """SIGKILL, whatever it does. Its number is free and its sockets are closed when this returns."""
        self.process.kill()
        self.process.wait()
        self.channel.close()
        self.errors.close()

    def _receive(self, kind: str) -> dict[str, Any]:
        try:
            return self.channel.receive(kind)
        except PolyroceError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)  # its end of the channel is closed a little earlier
            if self.process.returncode is None:
                raise Wrong(f"peer {self.address} does not answer: {error}") from None
            self.errors.seek(0)
            raise Wrong(f"peer {self.address} died: {self.errors.read().decode(errors='replace')}") from None


@dataclass(frozen=True)
class Plan:
    """What is to happen in a round. victim, caller: numbers of sides. pairs: queue pairs. delay: seconds from the
    beginning of the bootstrap to the event; pause: how long a stopped process stands still. closing: the survivor
    begins to close just before the event."""

    event: str
    victim: int
    caller: int
    pairs: int
    delay: float
    pause: float
    closing: bool

    @classmethod
    def draw(cls, rng: random.Random, event: str) -> Plan:
        early = rng.random() < 0.2
        paused = event == "pause"
        return cls(
            event, rng.randrange(2), rng.randrange(2), rng.randrange(1, 5),
            rng.uniform(0, 0.05) if early and not paused else rng.uniform(0.05, 0.6),
            rng.uniform(0.02, 0.4) if paused else rng.uniform(0, 2.5), rng.random() < 0.2 and not paused,
        )  # fmt: skip


class Chaos:
    """Both sides and what was seen of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        block = os.getpid()
        self.addresses = [f"127.{64 + (block >> 14) % 128}.{block >> 6 & 255}.{(block & 63) * 4 + i}" for i in (1, 2)]
        self.sides: list[Process] = []
        self.number = 0
        self.total: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.noticed: list[float] = []
        self.reconnected: list[float] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The processes live inside this, and never longer."""
        try:
            self.sides = []
            for address in self.addresses:
                self.sides.append(Process(address))
            yield
        finally:
            for side in self.sides:
                side.end()

    def round(self, plan: Plan) -> None:
        """One event, and the way back from it."""
        self.total[plan.event] += 1
        old = self._begin(plan.caller, plan.pairs)
        time.sleep(plan.delay)
        if plan.event == "pause":
            self._pause(plan, old)
            new = old
        else:
            new = self._cut(plan, old)
        self._finish(new)
        for side in self.sides:
            self._forget(side, old, new)

    # Steps of a round

    def _begin(self, caller: int, pairs: int) -> int:
        """Have both sides connect and begin. The number of the generation; the answers are still to come."""
        self.number += 1
        seeds = [[self.rng.getrandbits(32) for _ in range(pairs)] for _ in range(2)]
        for i, side in enumerate(self.sides):
            side.tell(
                "join", number=self.number, call=i == caller, peer=self.addresses[1 - i], seeds=seeds[i],
                peer_seeds=seeds[1 - i],
            )  # fmt: skip
        return self.number

    def _pause(self, plan: Plan, number: int) -> None:
        """A process stands still for less than the give-up time: nothing fails."""
        victim = self.sides[plan.victim]
        victim.signal(signal.SIGSTOP)
        time.sleep(plan.pause)
        victim.signal(signal.SIGCONT)
        self._joined()
        self._warm(number)

    def _cut(self, plan: Plan, old: int) -> int:
        """One process is cut off for good. Returns the generation that follows, which is warm and was attacked."""
        survivor, victim = self.sides[1 - plan.victim], self.sides[plan.victim]
        if plan.closing:
            survivor.tell("close", number=old)
        begin = time.monotonic()
        if plan.event in ("stop", "stop and kill"):
            victim.signal(signal.SIGSTOP)
        if plan.event == "stop and kill":
            time.sleep(plan.pause)
        if plan.event in ("kill", "restart", "stop and kill"):
            victim.end()
            self._check_ports(victim.address)
        joined = "failed" not in self._answer(survivor, "named in the error of the bootstrap")
        if plan.closing:
            survivor.answer()
        if plan.event == "restart":
            self.sides[plan.victim] = Process(victim.address)
        else:
            self._ended(survivor, old, begin, joined)
        if plan.event == "stop":
            self._continue(victim, survivor, old)
        elif plan.event in ("kill", "stop and kill"):
            self.sides[plan.victim] = Process(victim.address)
        new = self._begin(plan.caller, plan.pairs)
        since = time.monotonic()
        self._joined()
        self._warm(new)
        self.reconnected.append(time.monotonic() - since)
        if plan.event == "restart":
            self._ended(survivor, old, begin, joined)
        self._replay(survivor, old, new)
        return new

    def _answer(self, side: Process, what: str) -> dict[str, Any]:
        """The answer to a join. It may have failed if it says whose fault it was."""
        answer = side.answer()
        if "failed" in answer:
            self.total["bootstraps cut"] += 1
            other = self.addresses[1 - self.addresses.index(side.address)]
            text = answer["failed"]
            # Who is called knows no more than where the call came from, which on one machine is 127.0.0.1.
            known = (other, "127.0.0.1", "nobody came")
            require(any(name in text for name in known), f"the peer is not {what}: {text}")
        return answer

    def _joined(self) -> None:
        for side in self.sides:
            answer = side.answer()
            require("failed" not in answer, f"{side.address} could not connect: {answer}")
        self.total["generations"] += 1

    def _warm(self, number: int) -> None:
        for side in self.sides:
            self._until(side, number, lambda found: min(found["checked"]) >= WARM, "compare something")

    def _ended(self, side: Process, number: int, begin: float, joined: bool) -> None:
        """The generation of a peer that is no more ended: every request once, by name, in time."""
        limit = side.generation(number)["give_up_s"]
        found = self._until(side, number, lambda found: found["over"], "end", limit + SLACK)
        self._once(found)
        failed = [item for item in found["errors"] if item[0]]
        self.total["requests and receives ended by errors"] += len(found["errors"])
        other = self.addresses[1 - self.addresses.index(side.address)]
        for request, status, text in found["errors"]:
            self.statuses[status] += 1
            self.causes[_cause(text)] += 1
            require(not joined or other in text, f"the peer is not named in {text!r}")
            if request and status == "RETRY_EXC_ERR":
                cause = "no answer after" in text or "over several paths" in text
                require(cause and "path" in text, f"path or cause is not named in {text!r}")
            require(status in ("RETRY_EXC_ERR", "WR_FLUSH_ERR"), f"{status}: {text}")
        if failed:
            self.total["rounds with failed requests"] += 1
            self.noticed.append(time.monotonic() - begin)

    def _continue(self, victim: Process, survivor: Process, old: int) -> None:
        """A stopped process goes on with connections that its peer has given up: what it sends is dropped there."""
        strangers = ("dropped_unknown_qpn", "dropped_wrong_state")
        before = survivor.dropped(*strangers)
        begin = time.monotonic()
        victim.signal(signal.SIGCONT)
        joined = "failed" not in self._answer(victim, "named in the error of the bootstrap")
        self._ended(victim, old, begin, joined)
        found = victim.generation(old)
        more = survivor.dropped(*strangers) - before
        self.total["packets of continued processes dropped"] += more
        if any(request and status == "RETRY_EXC_ERR" for request, status, _ in found["errors"]):
            require(more > 0, "a continued process got no answer, and nothing of it was counted")

    def _replay(self, survivor: Process, old: int, new: int) -> None:
        """All that is known of the old generation again, to both sides: first as it was, then onto the new one."""
        other = next(side for side in self.sides if side is not survivor)
        for onto in (None, new):
            names = tuple(name for name in DROPS if name not in NOISE) if onto else ("dropped_unknown_qpn",)
            before = [side.dropped(*names) for side in (survivor, other)]
            sent = survivor.ask("replay", number=old, peer=other.address, onto=onto)
            for side, start, count in zip((survivor, other), before, (sent["came"], sent["went"]), strict=True):
                self._dropped(side, names, start + count)
                self.total["packets replayed and dropped"] += count

    def _dropped(self, side: Process, names: Sequence[str], wanted: int) -> None:
        """Wait until the counters with these names sum to `wanted`; they must not go beyond."""
        end = time.monotonic() + SLACK
        while side.dropped(*names) < wanted and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.01)
        found = side.dropped(*names)
        require(found == wanted, f"{side.address}: with what was replayed {wanted} are to be dropped, {found} were")

    def _finish(self, number: int) -> None:
        """The generation ends as one should: every byte compared, nothing failed."""
        for side in self.sides:
            side.ask("limit", number=number)
        for side in self.sides:
            self._until(side, number, lambda found: found["finished"], "finish")
        limits = [side.generation(number)["expected"] for side in self.sides]
        for side, mine, theirs in zip(self.sides, limits, limits[::-1], strict=True):
            wanted = [own + other // 8 * 3 for own, other in zip(mine, theirs, strict=True)]
            self._until(side, number, lambda found, wanted=wanted: found["checked"] == wanted, "compare everything")
        for side in self.sides:
            side.ask("close", number=number)
        for side in self.sides:
            found = self._until(side, number, lambda found: found["over"], "close")
            self._once(found)
            self.total["compared"] += sum(found["checked"])
            failed = [text for request, _, text in found["errors"] if request]
            require(not failed, failed)

    def _forget(self, side: Process, *numbers: int) -> None:
        """After the round: nothing is left of it. Counters are the process's own, so they are read at its end."""
        present = side.status()["generations"]
        for number in {number for number in numbers if str(number) in present}:
            side.ask("forget", number=number)
        status = side.status()
        side.rounds += 1
        if side.rounds == 3:
            side.settled = status["resident"]
        require(status["descriptors"] == side.descriptors, f"{status['descriptors']} descriptors: {side.descriptors}")
        require(status["connections"] == status["peers"] == 0, f"left behind: {status}")
        require(
            side.rounds < 3 or status["resident"] < side.settled + GROWTH,
            f"resident set after {side.rounds} rounds: {status['resident']}, after three: {side.settled}",
        )
        for name in DROPS:
            self.dropped[name] += status["counters"][name] - side.seen.get(name, 0)
        side.seen = status["counters"]

    # What is held in all of them

    def _once(self, found: dict[str, Any]) -> None:
        require(not found["wrong"], found["wrong"])
        require(found["posted"] == found["completed"], f"posted {found['posted']}, completed {found['completed']}")
        self.total["requests and receives completed once"] += found["completed"]

    def _until(
        self, side: Process, number: int, reached: Callable[[dict[str, Any]], bool], what: str, patience: float = SLACK
    ) -> dict[str, Any]:
        """Wait for a state of a generation, and return it."""
        end = time.monotonic() + patience
        while True:
            found = side.generation(number)
            require(not found["wrong"], found["wrong"])
            if reached(found):
                return found
            require(time.monotonic() < end, f"{side.address} did not {what} within {patience:g} s: {found}")
            time.sleep(0.02)

    def _check_ports(self, address: str) -> None:
        """All that a peer binds can be bound at once."""
        with contextlib.ExitStack() as stack:
            for kind, port in ((socket.SOCK_STREAM, PORT), *((socket.SOCK_DGRAM, n) for n in (ROCE_PORT, *ENTROPIES))):
                sock = stack.enter_context(socket.socket(socket.AF_INET, kind))
                if kind == socket.SOCK_STREAM:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    sock.bind((address, port))
                except OSError as error:
                    raise Wrong(f"{address} port {port} is not free after the process is gone: {error}") from None

    def report(self) -> dict[str, Any]:
        """What was seen."""
        return {
            **self.total,
            "statuses": dict(self.statuses), "causes": dict(self.causes),
            "noticed_s": _summary(self.noticed), "reconnected_s": _summary(self.reconnected),
            "counted": {name: count for name, count in self.dropped.items() if count},
        }  # fmt: skip


def _summary(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "median": round(statistics.median(values), 3), "least": round(min(values), 3), "most": round(max(values), 3)
    }  # fmt: skip


def _cause(text: str) -> str:
    """The part of an error that is the same in every round."""
    cause = text.partition(": ")[2]
    return cause.partition(",")[0].partition(":")[0]


def run(rounds: int, seed: int, tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """`rounds` rounds; the report. Wrong names the round and its plan."""
    chaos = Chaos(seed)
    begin = time.monotonic()
    with chaos.running():
        for i in range(rounds):
            plan = Plan.draw(chaos.rng, EVENTS[i % len(EVENTS)])
            tell(f"round {i}: {plan}")
            try:
                chaos.round(plan)
            except PolyroceError as error:
                raise Wrong(f"round {i} of seed {seed}, {plan}: {type(error).__name__}: {error}") from error
            except Wrong as error:
                raise Wrong(f"round {i} of seed {seed}, {plan}: {error}") from None
        processes = [side.process.pid for side in chaos.sides]
    left = [pid for pid in processes if os.path.exists(f"/proc/{pid}")]
    require(not left and not _children(), f"processes are left: {left}, {_children()}")
    return {"rounds": rounds, "seed": seed, "seconds": round(time.monotonic() - begin, 1), **chaos.report()}


def _children() -> list[str]:
    """Peers that this process still has."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        children = file.read().split()
    found = []
    for child in children:
        with contextlib.suppress(OSError), open(f"/proc/{child}/cmdline", "rb") as file:
            if b"tests.robustness.peer" in file.read():
                found.append(child)
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="no line for each round")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    try:
        found = run(options.rounds, options.seed, tell)
    except Wrong as error:
        print(json.dumps({"wrong": str(error)}))
        return 1
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
