"""Everything about a variant that can be wrong is found here, before any variant of its scenario runs.

What is made on the way, the workload and the fabric, is what then runs. Errors that are about one variant of several
name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cc import registry
from testbed import fabrics, gates
from testbed.scenario import Scenario, Variant
from testbed.sim.fabric import FabricSpec
from testbed.simulated import CableChange
from testbed.workloads.base import Workload, runnable
from transport.config import CONTROL_WITHOUT_ECN, EndpointConfig
from transport.errors import ConfigError
from transport.nic.dgram import SOCKETS

NETWORKS = (*SOCKETS, "loopback", "sim")

#: Those in virtual time, in this process: what they do depends on nothing but the seed.
VIRTUAL = ("loopback", "sim")

#: Bytes of a phase above which a simulated fabric carries only their number.
_REAL_BYTES = 256 << 20


@dataclass(frozen=True)
class Fabric:
    """What a run over a simulated fabric needs. phantom: bytes exist only in number."""

    spec: FabricSpec
    changes: Sequence[CableChange]
    phantom: bool


@dataclass(frozen=True)
class Ready:
    """A variant that can run. config: the endpoints'. fabric: None but on sim."""

    variant: Variant
    config: EndpointConfig
    workload: Workload
    fabric: Fabric | None = None


def ready(scenario: Scenario, on: str) -> list[Ready]:
    """All variants over `on`. ConfigError names what cannot be: field, value, what is allowed."""
    if on not in NETWORKS:
        raise ConfigError(f"--on {on}: allowed are {', '.join(NETWORKS)}")
    found: list[Ready] = []
    for variant in scenario.variants:
        try:
            found.append(_ready(variant, on, found[-1] if found else None))
        except ConfigError as error:
            if len(scenario.variants) == 1:
                raise
            raise ConfigError(f"variant {variant.name!r}: {error}") from None
    return found


def _ready(variant: Variant, on: str, before: Ready | None) -> Ready:
    """before: the variant in front of this one. Its workload is taken where it is the same."""
    settings = variant.settings
    config = _configured(variant, on)
    _check_signals(variant, config, on)
    if settings.faults.cable and on != "sim":
        raise ConfigError(f"faults.cable: allowed on sim only, --on {on} has no cables that could be named")
    scale = 1.0 if on in VIRTUAL else settings.udp.time_scale
    theirs = before.variant.settings if before else None
    if before and theirs and (theirs.workload, theirs.seed) == (settings.workload, settings.seed) and scale == 1.0:
        workload = before.workload
    else:
        workload = runnable(settings.workload.make(settings.seed, scale))
        gates.check(workload.phases, on in VIRTUAL)
    return Ready(variant, config, workload, _fabric(variant, workload) if on == "sim" else None)


def _configured(variant: Variant, on: str) -> EndpointConfig:
    """The endpoints' configuration: where sockets show no CE marks and nobody named a control, one that needs none."""
    if on == "dgram" and "cc" not in variant.settings.transport.model_fields_set:
        return replace(variant.config, control=CONTROL_WITHOUT_ECN)
    return variant.config


def _check_signals(variant: Variant, config: EndpointConfig, on: str) -> None:
    """ConfigError if the control needs what the network does not tell."""
    name = config.control
    control = registry.resolve(name) if isinstance(name, str) else name
    given = {"ecn": on != "dgram", "int_telemetry": on == "sim" and variant.settings.fabric.int_telemetry}
    for need in sorted(control.needs):
        if not given[need]:
            where = "--on sim with fabric.int_telemetry = true" if need == "int_telemetry" else "--on udp"
            raise ConfigError(
                f"cc = {name!r}: control {control.name} needs {need}, which --on {on} does not give here; {where} does"
            )


def _fabric(variant: Variant, workload: Workload) -> Fabric:
    settings = variant.settings
    spec = fabrics.spec(settings.fabric, workload.ranks, settings.transport.ports)
    changes = fabrics.changes(settings.faults.cable, spec.topology, settings.seed)
    phantom = settings.fabric.phantom
    if phantom is None:
        phantom = max(phase.logical_bytes for phase in workload.phases) > _REAL_BYTES
    return Fabric(spec, changes, phantom)
