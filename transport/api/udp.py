"""Opens the Nic of a device on UDP sockets: source ports that are free, and the endpoint's configuration with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from transport import entropy
from transport.config import EndpointConfig
from transport.errors import ConfigError
from transport.nic.base import Nic
from transport.nic.dgram import SOCKETS
from transport.nic.ports import PortsNic
from transport.nic.udp import UdpNic, free_entropies
from transport.wire import ID0, OFF

#: In place of a name of a Nic: the first of them that the system allows.
AUTO = "auto"

#: Source ports may be taken by other programs: this many more are tried.
_SPARE = 64


def open_udp(addresses: Sequence[str], config: EndpointConfig, sockets: str = AUTO) -> tuple[Nic, EndpointConfig]:
    """The Nic on `addresses`, one for each plane, and `config` with the source ports that it has on all of them. Ports
    that `config` names are taken as they are, one in use is a NicError. sockets: one of SOCKETS; AUTO is udp on Linux,
    else dgram."""
    kind = SOCKETS.get(("udp" if sys.platform == "linux" else "dgram") if sockets == AUTO else sockets)
    if kind is None:
        raise ConfigError(f"sockets = {sockets!r}: allowed are {', '.join((AUTO, *SOCKETS))}")
    if not addresses:
        raise ConfigError("nic = no address: one numeric address of this host for each plane is allowed")
    if config.entropies is None and config.entropy_mask is None:
        wanted = dict.fromkeys([*entropy.automatic(config.paths), *entropy.automatic(_SPARE, seed=1)])
        ports = free_entropies(addresses, wanted, config.paths)
    else:
        ports = config.ports()
    nics: list[Nic] = []
    try:
        for address in addresses:
            nics.append(_open(kind, address, ports, config))
        nic = nics[0] if len(nics) == 1 else PortsNic(nics)
    except BaseException:
        for opened in nics:
            opened.close()
        raise
    return nic, replace(config, entropies=tuple(ports), entropy_mask=None)


def _open(kind: type[UdpNic], address: str, ports: Sequence[int], config: EndpointConfig) -> UdpNic:
    return kind(
        address, ports, mtu=config.mtu, icrc=ID0 if config.icrc else OFF, max_run=min(64, config.max_run),
        max_sockets=max(256, 2 * len(ports)),
    )  # fmt: skip
