"""A run whose ranks were started by a launcher: `mpirun -n 4 polyroce run incast`, torchrun, srun.

Every process joins the group. Rank 0 coordinates (testbed/processes.py), with its own rank as a child; the others do
here what it orders, one job after the other, and end with the verdict.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.errors import RunError
from testbed.rank_process import MAX_LINE, carry_out
from testbed.scenario import Scenario
from transport.bootstrap import PeerGoneError
from transport.errors import ConfigError, NegotiationError, PolyroceError
from transport.group import Group
from transport.launch import World

#: Seconds from one job to the next, or to the verdict, in which rank 0 prepares workloads and judges.
_BETWEEN = 600.0


@contextmanager
def joined(wanted: bool) -> Iterator[Group | None]:
    """The group of all ranks, once all are there. None if it is not wanted, or no launcher started more than one."""
    world = World.from_environment(os.environ) if wanted else None
    if world is None or world.size == 1:
        yield None
        return
    try:
        group = Group.join(world, max_line=MAX_LINE)
    except PolyroceError as error:
        text = (
            f"rank {world.rank} of {world.size} of {world.launcher}: {error} (--launcher off runs without the others)"
        )
        # A Refusal is one for its peer; here it is told to the user.
        raise (NegotiationError if isinstance(error, NegotiationError) else type(error))(text) from None
    finished = False
    try:
        yield group
        finished = True
    finally:
        (group.close if finished else group.abort)()


def check(group: Group | None, on: str, ranks: int | None, pcap: bool) -> None:
    """ConfigError if this command cannot be run by the ranks of a launcher."""
    if group is None:
        return
    world = group.world
    if on == "loopback":
        raise ConfigError(
            f"--on {on}: the ranks that {world.launcher} started can only meet over udp or dgram (or --launcher off)"
        )
    if ranks not in (None, world.size):
        raise ConfigError(f"--ranks {ranks}: {world.launcher} started {world.size}, which is allowed here")
    if pcap and not world.local:
        raise ConfigError("--pcap: only allowed where all ranks are on one machine")


def sizable(scenario: Scenario) -> bool:
    """Whether the number of ranks of its workload is a key of its own."""
    return "ranks" in type(scenario.variants[0].settings.workload).model_fields


def follow(group: Group) -> bool:
    """What ranks other than 0 do until it has a verdict, which is returned: whether the run passed. RunError if it
    ended without one."""
    channel = group.channels[0]
    try:
        while (order := channel.receive("job", "verdict", patience=_BETWEEN))["type"] == "job":
            carry_out(channel, order)
    except PeerGoneError:
        raise RunError("rank 0 ended before it had a verdict") from None
    return bool(order["passed"])


def tell(group: Group, passed: bool) -> None:
    """Rank 0's verdict, to all others."""
    for channel in group.channels.values():
        channel.send({"type": "verdict", "passed": passed})


def addresses(group: Group, ranks: int, ports: int) -> tuple[tuple[str, ...], ...]:
    """Of every rank, one for each port; none, for the usual ones of 127/8, if all are on this machine.

    ConfigError if the workload has another number of ranks than were started, a rank has too few addresses, or two
    have the same.
    """
    world = group.world
    if ranks != world.size:
        raise ConfigError(f"workload.ranks = {ranks}: {world.launcher} started {world.size}, which is allowed here")
    if world.local:
        return ()
    owners: dict[str, list[int]] = defaultdict(list)
    for rank, own in enumerate(group.addresses):
        if len(own) < ports:
            raise ConfigError(
                f"transport.ports = {ports}, but rank {rank} has the addresses {', '.join(own)}: POLYROCE_ADDRESS must "
                "list as many, separated by commas"
            )
        for address in own[:ports]:
            owners[address].append(rank)
    for address, sharing in owners.items():
        if len(sharing) > 1:
            raise ConfigError(
                f"ranks {', '.join(map(str, sharing))} all have the address {address}: POLYROCE_ADDRESS must give each "
                "one of its own"
            )
    return tuple(own[:ports] for own in group.addresses)
