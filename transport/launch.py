"""Who this process is among those that a launcher started: torchrun, mpirun or srun, by the variables they set.

The first that applies decides: RANK and WORLD_SIZE (torchrun, and whoever sets them by hand), OMPI_COMM_WORLD_* (Open
MPI's mpirun), SLURM_* of a step (srun). They may be nested, so that an inner launcher overrules an outer one. Rank 0 is
found at MASTER_ADDR and MASTER_PORT where those are set; else at this machine if all ranks are on it, or on SLURM's
first node, on a port that is computed from the launcher's job number. POLYROCE_ADDRESS, the own IPv4 addresses of a
rank separated by commas, is for ranks that are spread over several machines.

No I/O happens here; transport/group.py brings the ranks together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from transport.errors import ConfigError

#: Ports that a job number is mapped to: below the ephemeral ones of Linux, above those of well-known services.
_FIRST_PORT = 20000
_PORTS = 12000

LOCAL = "127.0.0.1"


@dataclass(frozen=True)
class World:
    """rank of size processes; local_size: how many of them are on this machine, 0 if that is not known. master, port:
    where rank 0 can be reached over TCP. addresses: own addresses that were given, none if they are to be found out.
    launcher: whose variables said so."""

    rank: int
    size: int
    local_size: int
    master: str
    port: int
    launcher: str
    addresses: tuple[str, ...] = ()

    @property
    def local(self) -> bool:
        """All ranks are on one machine."""
        return self.local_size == self.size

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> World | None:
        """The world that the variables describe, None if no launcher set any. ConfigError names a variable that is
        missing or wrong, its value, and what is allowed."""
        if "RANK" in environ or "WORLD_SIZE" in environ:
            return _read(environ, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        if "OMPI_COMM_WORLD_RANK" in environ:
            names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
            return _read(environ, "mpirun", *names)
        # Only srun sets this; a batch script has SLURM_PROCID too, and is alone.
        if "SLURM_STEP_NUM_TASKS" in environ:
            return _read(environ, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "")
        return None


def _read(environ: Mapping[str, str], launcher: str, rank: str, size: str, local_size: str) -> World:
    count = _number(environ, size, 1, 1 << 20)
    number = _number(environ, rank, 0, count - 1)
    if launcher == "srun":
        hosts = hostlist(environ.get("SLURM_STEP_NODELIST", ""))
        local = count if len(hosts) == 1 else 0
        first, job = (hosts[0] if hosts else ""), "SLURM_JOB_ID"
    else:
        local = _number(environ, local_size, 1, count) if local_size in environ else 0
        first, job = "", "OMPI_MCA_ess_base_jobid"
    master = environ.get("MASTER_ADDR") or (LOCAL if local == count else first)
    if not master:
        raise ConfigError(f"MASTER_ADDR is not set, and {launcher} does not say where rank 0 is: it must name its host")
    if "MASTER_PORT" in environ:
        port = _number(environ, "MASTER_PORT", 1, 65534)
        port += environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself listens on MASTER_PORT
    elif launcher != "torchrun" and job in environ:
        port = _FIRST_PORT + _number(environ, job, 0, 1 << 63) % _PORTS
    else:
        raise ConfigError("MASTER_PORT is not set: it must be the TCP port on which rank 0 waits for the others")
    return World(number, count, local, master, port, launcher, _addresses(environ.get("POLYROCE_ADDRESS", "")))


def _addresses(text: str) -> tuple[str, ...]:
    try:
        return tuple(str(IPv4Address(part.strip())) for part in text.split(",") if text)
    except ValueError:
        raise ConfigError(f"POLYROCE_ADDRESS = {text!r}: IPv4 addresses separated by commas are allowed") from None


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environ.get(name)
    allowed = f"a whole number from {low} to {high} is allowed"
    if text is None:
        raise ConfigError(f"{name} is not set: {allowed}")
    if not re.fullmatch(r"[0-9]{1,20}", text) or not low <= int(text) <= high:
        raise ConfigError(f"{name} = {text!r}: {allowed}")
    return int(text)


def hostlist(text: str) -> list[str]:
    """The hosts of SLURM's compressed notation: node[01-03,7],login gives node01, node02, node03, node7, login.
    ConfigError if it is none, or names more than 65,536 hosts."""
    hosts: list[str] = []
    rest = text
    while rest:
        match = re.match(r"([^\[\],]*)(?:\[([0-9,-]+)\]([^\[\],]*))?(?:,|$)", rest)
        if match is None or not match[0].strip(","):
            raise ConfigError(f"node list {text!r}: a list such as node[01-03,7],login is allowed")
        prefix, ranges, suffix = match[1], match[2], match[3] or ""
        if ranges is None:
            hosts.append(prefix)
        else:
            for part in ranges.split(","):
                low, _, high = part.partition("-")
                if not low.isdigit() or not (high or low).isdigit() or int(high or low) - int(low) not in range(65536):
                    raise ConfigError(f"node list {text!r}: {part!r} is no range of numbers")
                hosts += [f"{prefix}{n:0{len(low)}d}{suffix}" for n in range(int(low), int(high or low) + 1)]
        if len(hosts) > 65536:
            raise ConfigError(f"node list {text!r:.80}: at most 65536 hosts are allowed")
        rest = rest[match.end() :]
    return hosts
