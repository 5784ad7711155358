"""Scenario files: what is run, over what, and what it is held to. The format is in docs/scenarios.md.

A file is TOML, checked strictly: an unknown key or a wrong value is a ConfigError that names the file, the line, the
key, the value and what is allowed. `--set` overrides go through the same checks.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError

from testbed import metrics
from testbed.sections import (
    Blackhole,
    FabricSection,
    FaultsSection,
    GraphCable,
    GraphSection,
    Limit,
    PlaneFault,
    Section,
    TransportSection,
    UdpSection,
    WatchSection,
    as_limit,
)  # fmt: skip
from testbed.where import Where
from testbed.workloads.readers.files import found_in
from testbed.workloads.sections import KINDS, AnyWorkload, FileSection
from transport.config import EndpointConfig
from transport.errors import ConfigError

Expectations: TypeAlias = dict[str, Annotated[Limit, BeforeValidator(as_limit)]]


class VariantSection(Section):
    """The scenario with some values changed. baseline: another variant, for the metrics that compare with one."""

    name: str
    set: dict[str, Any] = Field(default_factory=dict)
    expect: Expectations = Field(default_factory=dict)
    baseline: str | None = None


class ScenarioFile(Section):
    """A whole file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    transport: TransportSection = TransportSection()
    workload: AnyWorkload
    fabric: FabricSection = FabricSection()
    udp: UdpSection = UdpSection()
    faults: FaultsSection = FaultsSection()
    watch: WatchSection = WatchSection()
    expect: Expectations = Field(default_factory=dict)
    variant: list[VariantSection] = Field(default_factory=list)


@dataclass(frozen=True)
class Variant:
    """One thing to run. settings: the whole scenario with this variant's values and the user's in it."""

    name: str
    settings: ScenarioFile
    config: EndpointConfig
    expect: dict[str, Limit]
    baseline: str | None = None


@dataclass(frozen=True)
class Scenario:
    """A validated scenario. variants: at least one; the first is the default."""

    name: str
    summary: str
    seed: int
    variants: tuple[Variant, ...]
    source: str = field(default="", compare=False)


def known() -> dict[str, str]:
    """The scenarios that come with the package: name to summary."""
    found = {}
    for name in _shipped():
        data = tomllib.loads(_shipped_text(name))
        found[name] = str(data["summary"])
    return found


def load(which: str, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of that name, or of that file if it ends in .toml. overrides: "key=value" texts, the last wins."""
    if which.endswith(".toml"):
        try:
            text = Path(which).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"scenario file {which} cannot be read: {reason}") from None
        return parse(text, which, overrides, Path(which).parent)
    if which not in _shipped():
        raise ConfigError(
            f"scenario {which!r} is unknown; known: {', '.join(_shipped())}; or a file that ends in .toml"
        )
    return parse(_shipped_text(which), f"{which}.toml", overrides)


def parse(text: str, source: str, overrides: Sequence[str] = (), folder: Path | None = None) -> Scenario:
    """A scenario out of TOML text. source: what to call it in errors. folder: where files that it names are looked for
    before the current one."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    where = Where(text, source)
    base = _validate(data, where)
    given = dict(parse_override(item) for item in overrides)
    variants = []
    parts: list[VariantSection | None] = [*base.variant] or [None]
    for part in parts:
        name = part.name if part else "default"
        values = copy.deepcopy(data)
        inside = where
        for origin, changes in ((f"{source}, variant {name!r}", part.set if part else {}), ("--set", given)):
            for key, value in changes.items():
                inside = inside.with_origin(_apply(values, key, value, f"{origin} {key}"), f"{origin} {key}={value}")
        settings = _located(_validate(values, inside), folder)
        expect = {**settings.expect, **(part.expect if part else {})}
        variants.append(Variant(name, settings, _checked(settings, inside), expect, part.baseline if part else None))
    _check_variants(variants, where)
    first = variants[0].settings
    return Scenario(base.name, base.summary, first.seed, tuple(variants), source)


def parse_override(text: str) -> tuple[str, Any]:
    """ "transport.paths=8" as a key and a TOML value; what is no TOML value is taken as text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
        raise ConfigError(f"--set {text}: it is written key=value, the key with dots, such as transport.paths=8")
    try:
        return key, tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value.strip()


def _apply(data: dict[str, Any], key: str, value: Any, origin: str) -> tuple[str, ...]:
    """Set a dotted key. One without dots is a field of the scenario, or else of its workload. Returns its location."""
    names = tuple(key.split("."))
    if len(names) == 1 and names[0] not in ScenarioFile.model_fields:
        names = ("workload", *names)
    if names[0] in ("variant", "name"):
        raise ConfigError(f"{origin}: {names[0]} cannot be set")
    target = data
    for name in names[:-1]:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{origin}: {name} has no keys of its own")
    target[names[-1]] = value
    return names


def _validate(data: Mapping[str, Any], where: Where) -> ScenarioFile:
    try:
        return ScenarioFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, where) for item in error.errors()[:5])) from None


def _located(settings: ScenarioFile, folder: Path | None) -> ScenarioFile:
    """The same with the files that it names found in the folder, if they are there."""
    workload, fabric = settings.workload, settings.fabric
    found: dict[str, Section] = {}
    if folder is not None and isinstance(workload, FileSection):
        found["workload"] = workload.found_in(folder)
    if folder is not None and fabric.file is not None:
        found["fabric"] = fabric.model_copy(update={"file": found_in(folder, fabric.file)})
    return settings.model_copy(update=found) if found else settings


def _explain(item: Any, where: Where) -> str:
    """One of pydantic's findings as a line."""
    location: tuple[str | int, ...] = item["loc"]
    if location[:1] == ("workload",) and len(location) > 1 and location[1] in KINDS:
        kind = str(location[1])
        location = ("workload", *location[2:])
    else:
        kind = ""
    location = tuple(part for part in location if not str(part).startswith(("function-", "constrained-", "tagged-")))
    key = ".".join(map(str, location))
    place, problem = where(location), item["type"]
    if problem == "extra_forbidden":
        return f"{place}: key {key} is unknown; known: {', '.join(_fields(location[:-1], kind))}"
    if problem == "missing":
        return f"{place}: key {key} is missing"
    if problem == "union_tag_invalid":
        return f"{place}: workload.kind = {item['input'].get('kind')!r}: allowed are {', '.join(KINDS)}"
    if problem == "union_tag_not_found":
        return f"{place}: key workload.kind is missing; allowed are {', '.join(KINDS)}"
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return f"{place}: {key}: {cause}"
    return f"{place}: {key} = {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _fields(location: Sequence[str | int], kind: str) -> list[str]:
    """The keys that the section at a location has."""
    sections: dict[str, type[Section]] = {
        "transport": TransportSection, "fabric": FabricSection, "udp": UdpSection, "faults": FaultsSection,
        "watch": WatchSection, "variant": VariantSection,
    }  # fmt: skip
    names = [part for part in location if isinstance(part, str)]
    if not names:
        model: type[Section] = ScenarioFile
    elif names[0] == "workload":
        model = KINDS[kind]
    elif names[:2] == ["fabric", "graph"]:
        model = GraphCable if "cable" in names else GraphSection
    elif "blackhole" in names:
        model = Blackhole
    elif "plane" in names:
        model = PlaneFault
    elif "expect" in names:
        model = Limit
    else:
        model = sections.get(names[0], ScenarioFile)
    return list(model.model_fields)


def _checked(settings: ScenarioFile, where: Where) -> EndpointConfig:
    """The checks that need more than one field or the transport's own."""
    try:
        config = settings.transport.config()
    except ConfigError as error:
        name = str(error).split(" ", 1)[0]
        known_name = name if name in TransportSection.model_fields else "selector" if "selector" in str(error) else ""
        raise ConfigError(
            f"{where(('transport', *([known_name] if known_name else [])))}: transport: {error}"
        ) from None
    workload = settings.workload
    try:
        workload.check()
    except ConfigError as error:
        name = str(error).split(" ", 1)[0]
        key = name if name in type(workload).model_fields else "file" if isinstance(workload, FileSection) else "kind"
        raise ConfigError(f"{where(('workload', key))}: workload: {error}") from None
    if workload.outstanding > config.sq_depth:
        raise ConfigError(
            f"{where(('workload', 'depth'))}: workload.depth = {workload.outstanding}: at most transport.sq_depth = "
            f"{config.sq_depth} is allowed"
        )
    ports, faults = settings.transport.ports, settings.faults
    outages: list[Blackhole | PlaneFault] = [*faults.blackhole, *faults.plane]
    for number, fault in enumerate(outages):
        if isinstance(fault, Blackhole):
            name, key, value, count, i = "blackhole", "path", fault.path, ports * len(config.ports()), number
        else:
            name, key, value, count, i = "plane", "plane", fault.plane, ports, number - len(faults.blackhole)
        here = where(("faults", name, i))
        if value >= count:
            raise ConfigError(f"{here}: faults.{name}.{key} = {value}: allowed are 0 to {count - 1}")
        if fault.end_us is not None and fault.end_us <= fault.start_us:
            raise ConfigError(f"{here}: faults.{name}.end_us = {fault.end_us}: it is not after start_us")
    return config


def _check_variants(variants: Sequence[Variant], where: Where) -> None:
    names = [variant.name for variant in variants]
    for i, variant in enumerate(variants):
        if names.count(variant.name) > 1:
            raise ConfigError(f"{where(('variant', i, 'name'))}: variant {variant.name!r} is there twice")
        if variant.baseline is not None and variant.baseline not in names:
            raise ConfigError(
                f"{where(('variant', i, 'baseline'))}: baseline = {variant.baseline!r}: allowed are {', '.join(names)}"
            )
        for name in variant.expect:
            here = where(("expect", name))
            if name not in metrics.METRICS:
                raise ConfigError(f"{here}: metric {name!r} is unknown; known: {', '.join(metrics.METRICS)}")
            if metrics.METRICS[name].compares and variant.baseline is None:
                raise ConfigError(
                    f"{here}: metric {name} compares with a baseline, and variant {variant.name!r} has none"
                )


def _shipped() -> list[str]:
    folder = resources.files("testbed").joinpath("scenarios")
    return sorted(item.name[: -len(".toml")] for item in folder.iterdir() if item.name.endswith(".toml"))


def _shipped_text(name: str) -> str:
    return resources.files("testbed").joinpath("scenarios", f"{name}.toml").read_text(encoding="utf-8")
