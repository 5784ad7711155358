"""What the variables of launchers say, and how a group of ranks forms, fails and ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from transport import bootstrap
from transport.bootstrap import Channel
from transport.errors import ConfigError, NegotiationError
from transport.group import Group
from transport.launch import World, hostlist

pytestmark = pytest.mark.xdist_group("ports")

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node7", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_MCA_ess_base_jobid": "1326972929",
}  # fmt: skip
SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[08-09]", "SLURM_JOB_ID": "123456",
    "SLURM_NTASKS": "16",
}  # fmt: skip


def test_torchruns_variables() -> None:
    world = World.from_environment(TORCHRUN)
    assert world == World(1, 4, 2, "node7", 29500, "torchrun")
    assert not world.local


def test_torchrun_itself_may_listen_on_the_master_port() -> None:
    world = World.from_environment(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert world is not None
    assert world.port == 29501


def test_mpiruns_variables() -> None:
    world = World.from_environment(MPIRUN)
    assert world == World(2, 3, 3, "127.0.0.1", 20000 + 1326972929 % 12000, "mpirun")
    assert world.local


def test_sruns_variables() -> None:
    world = World.from_environment(SRUN)
    assert world == World(5, 8, 0, "gpu08", 20000 + 123456 % 12000, "srun")


def test_srun_on_one_node_is_local() -> None:
    world = World.from_environment(SRUN | {"SLURM_STEP_NODELIST": "gpu08"})
    assert world is not None
    assert (world.local, world.master) == (True, "127.0.0.1")


def test_an_inner_launcher_overrules_an_outer_one() -> None:
    world = World.from_environment(SRUN | MPIRUN | TORCHRUN)
    assert world is not None
    assert (world.launcher, world.rank) == ("torchrun", 1)
    world = World.from_environment(SRUN | MPIRUN)
    assert world is not None
    assert (world.launcher, world.rank) == ("mpirun", 2)


def test_a_batch_script_and_a_plain_shell_are_no_world() -> None:
    batch = {name: value for name, value in SRUN.items() if "STEP" not in name}
    assert World.from_environment(batch) is None
    assert World.from_environment({"PATH": "/bin"}) is None


def test_addresses_that_were_given() -> None:
    world = World.from_environment(MPIRUN | {"POLYROCE_ADDRESS": "10.0.0.1, 10.1.0.1"})
    assert world is not None
    assert world.addresses == ("10.0.0.1", "10.1.0.1")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "1"}, "WORLD_SIZE is not set: a whole number from 1 to 1048576"),
        ({"WORLD_SIZE": "4"}, "RANK is not set: a whole number from 0 to 3"),
        (TORCHRUN | {"RANK": "4"}, "RANK = '4': a whole number from 0 to 3"),
        (TORCHRUN | {"RANK": "-1"}, "RANK = '-1'"),
        (TORCHRUN | {"RANK": "\u0661"}, "RANK = "),
        (TORCHRUN | {"WORLD_SIZE": "9" * 30}, "WORLD_SIZE = "),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT = '0': a whole number from 1 to 65534"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, "MASTER_PORT is not set"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_ADDR"}, "MASTER_ADDR is not set, and torchrun"),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "MASTER_ADDR is not set, and mpirun"),
        (SRUN | {"SLURM_STEP_NODELIST": "gpu[8"}, r"node list 'gpu\[8'"),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, "MASTER_ADDR is not set, and srun"),
        (MPIRUN | {"POLYROCE_ADDRESS": "10.0.0.1,eth0"}, "POLYROCE_ADDRESS = '10.0.0.1,eth0': IPv4 addresses"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value_and_what_is_allowed(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World.from_environment(environ)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("node[01-03,7],login", ["node01", "node02", "node03", "node7", "login"]),
        ("rack[1-2]-ib,x", ["rack1-ib", "rack2-ib", "x"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_slurms_node_lists(text: str, hosts: list[str]) -> None:
    assert hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[3-1]", "n[", "n]", "n[a-b]", "[", ",,", "n[0-99999999]", "n[1-]x,[", "n[]"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="node list"):
        hostlist(text)


# The group


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def worlds(size: int) -> list[World]:
    port = free_port()
    return [World(rank, size, size, "127.0.0.1", port, "mpirun") for rank in range(size)]


def at_every_rank(those: list[World], action: Callable[[Group], Any], patience: float = 30.0) -> list[Any]:
    """What each rank's action returned, or the error it ended with."""

    def one(world: World) -> Any:
        try:
            with Group.join(world, patience) as group:
                return action(group)
        except NegotiationError as error:
            return error

    with ThreadPoolExecutor(len(those)) as pool:
        return list(pool.map(one, those))


def test_all_ranks_learn_what_all_have() -> None:
    def action(group: Group) -> list[Any]:
        group.barrier()
        return group.allgather({"rank": group.world.rank})

    expected = [{"rank": rank} for rank in range(5)]
    assert at_every_rank(worlds(5), action) == [expected] * 5


def test_rank_0_knows_the_addresses_of_all() -> None:
    those = worlds(3)
    those[2] = World(2, 3, 3, "127.0.0.1", those[0].port, "mpirun", ("10.0.0.2", "10.1.0.2"))
    found = at_every_rank(those, lambda group: group.addresses)
    assert found == [[("127.0.0.1",), ("127.0.0.1",), ("10.0.0.2", "10.1.0.2")], [], []]


def test_a_world_of_one_needs_nobody() -> None:
    [found] = at_every_rank(worlds(1), lambda group: group.allgather(7))
    assert found == [7]


def test_who_does_not_come_is_named_at_every_rank() -> None:
    those = worlds(4)
    errors = at_every_rank([those[0], those[2]], lambda group: None, patience=1.0)
    assert "rank 1, 3 did not come within 1 s" in str(errors[0])
    assert "rank 0 refused: rank 1, 3 did not come within 1 s" in str(errors[1])


def test_two_with_the_same_rank_are_refused() -> None:
    those = worlds(3)
    errors = at_every_rank([those[0], those[1], those[1]], lambda group: None)
    assert "rank = 1: missing are 2" in str(errors[0])
    assert all("rank = 1: missing are 2" in str(error) for error in errors)


def test_another_size_is_refused() -> None:
    those = worlds(3)
    other = World(1, 2, 2, "127.0.0.1", those[0].port, "mpirun")
    errors = at_every_rank([those[0], other], lambda group: None)
    assert "size: 3 at rank 0, 2 at rank 1" in str(errors[0])
    assert "rank 0 refused: size: 3 at rank 0, 2 at rank 1" in str(errors[1])


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n\r\n", b"", b'{"type":"hello"}\n'])
def test_strangers_at_rank_0_do_no_harm(line: bytes) -> None:
    those = worlds(2)

    def stranger() -> None:
        for _ in range(600):
            try:
                with socket.create_connection(("127.0.0.1", those[0].port), timeout=5) as sock:
                    sock.sendall(line)
                    return
            except ConnectionRefusedError:
                time.sleep(0.02)

    with ThreadPoolExecutor(3) as pool:
        zero = pool.submit(at_every_rank, those[:1], lambda group: group.allgather(0))
        pool.submit(stranger).result()
        one = pool.submit(at_every_rank, those[1:], lambda group: group.allgather(1))
        assert (zero.result(), one.result()) == ([[0, 1]], [[0, 1]])


@pytest.mark.parametrize("addresses", [7, ["a", 1], None])
def test_addresses_that_are_none_are_refused(addresses: Any) -> None:
    those = worlds(2)
    with ThreadPoolExecutor(1) as pool:
        zero = pool.submit(at_every_rank, those[:1], lambda group: None)
        with bootstrap.connect("127.0.0.1", those[0].port) as channel:
            channel.send({"type": "join", "rank": 1, "size": 2, "addresses": addresses})
            with pytest.raises(
                NegotiationError, match=r"refused: addresses = .* of rank 1: a list of texts is allowed"
            ):
                channel.receive("joined")
        [error] = zero.result()
    assert f"addresses = {addresses!r} of rank 1" in str(error)


def test_a_rank_that_leaves_in_the_middle_is_noticed() -> None:
    def action(group: Group) -> Any:
        if group.world.rank == 2:
            raise NegotiationError("gave up")
        return group.allgather(0)

    errors = at_every_rank(worlds(3), action)
    assert [str(error) for error in errors] == [
        "rank 2 ended the bootstrap channel without a bye",
        "rank 0 refused: rank 2 ended the bootstrap channel without a bye",
        "gave up",
    ]


def test_a_stranger_that_says_hello_and_nothing_more_does_not_stretch_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = worlds(2)[0]
    asked: list[float] = []
    receive = Channel.receive

    def noted(channel: Channel, *expected: str, patience: float | None = None) -> Any:
        asked.append(patience if patience is not None else channel.patience)
        return receive(channel, *expected, patience=patience)

    monkeypatch.setattr(Channel, "receive", noted)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(Group.join, world, 1.0)
        stranger = bootstrap.connect(world.master, world.port, 5.0)
        with pytest.raises(NegotiationError, match="rank 1 did not come within 1 s"):
            joined.result()
        stranger.close()
    assert asked
    assert max(asked) <= 1.0


def test_a_gathered_without_items_is_refused_by_name() -> None:
    near, far = socket.socketpair()
    group = Group(World(1, 2, 2, "127.0.0.1", 1, "mpirun"), {0: Channel(near, "rank 0")}, [])
    Channel(far, "rank 1").send({"type": "gathered"})
    with pytest.raises(NegotiationError, match=r"rank 0: items = None: a list of 2 is allowed"):
        group.allgather(5)
