"""Source ports as path entropy: which UDP source ports a connection sprays over.

RoCEv2 reserves the dynamic ports 0xC000 to 0xFFFF for entropy (IB annex A17); switches hash them, so each is a path.
"""

from __future__ import annotations

from collections.abc import Iterable

from transport.errors import ConfigError

FIRST_PORT = 0xC000
LAST_PORT = 0xFFFF

#: Most paths of one endpoint.
MAX_PATHS = 4096

# Multiplicative hashing (Knuth, TAOCP 6.4): any constants without small factors do.
_SCATTER = 2654435761
_SEED_SCATTER = 40503
_PRIME = 1000003


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_PATHS:
        raise ConfigError(f"paths = {count!r}: allowed are whole numbers from 1 to {MAX_PATHS}")


def automatic(count: int, seed: int = 0) -> list[int]:
    """`count` distinct ports, the same for the same seed, spread evenly: one scattered inside each of `count` equal
    slices."""
    _check_count(count)
    room = LAST_PORT + 1 - FIRST_PORT
    ports = []
    for i in range(count):
        low, high = i * room // count, (i + 1) * room // count
        ports.append(FIRST_PORT + low + ((i + 1) * _SCATTER + seed * _SEED_SCATTER) % _PRIME % (high - low))
    return ports


def explicit(ports: Iterable[int]) -> list[int]:
    """The ports the user names: distinct, each from 0xC000 to 0xFFFF."""
    chosen = list(ports)
    _check_count(len(chosen))
    for port in chosen:
        if not isinstance(port, int) or isinstance(port, bool) or not FIRST_PORT <= port <= LAST_PORT:
            raise ConfigError(f"entropies: {port!r} is no source port from {FIRST_PORT:#x} to {LAST_PORT:#x}")
    if len(set(chosen)) != len(chosen):
        twice = next(port for port in chosen if chosen.count(port) > 1)
        raise ConfigError(f"entropies: {twice} is named twice, every path needs a port of its own")
    return chosen


def generated(mask: int, base: int = FIRST_PORT) -> list[int]:
    """Every port that `base` gives when the bits of `mask` take all values, in counting order."""
    if not 0 <= mask <= 0x3FFF:
        raise ConfigError(f"entropy mask = {mask:#x}: allowed are the 14 bits 0x0000 to 0x3fff")
    bits = [bit for bit in range(14) if mask >> bit & 1]
    _check_count(1 << len(bits))
    fixed = base & ~mask
    return explicit(
        fixed | sum(1 << bit for place, bit in enumerate(bits) if number >> place & 1)
        for number in range(1 << len(bits))
    )


def flow_label_to_port(label: int) -> int:
    """The source port that drivers derive from a 20-bit IPv6 flow label (rdma_flow_label_to_udp_sport in rdma-core)."""
    if not 0 <= label < 1 << 20:
        raise ConfigError(f"flow label = {label}: allowed are 0 to {(1 << 20) - 1}")
    return ((label & 0x3FFF) ^ (label >> 14)) | FIRST_PORT
