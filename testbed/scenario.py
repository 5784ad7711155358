"""Scenario files: what is run, over what, and what it is held to. The format is in docs/scenarios.md.

A file is TOML, checked strictly: an unknown key or a wrong value is a ConfigError that names the file, the line, the
key, the value and what is allowed. `--set` overrides go through the same checks.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from cc import registry
from cc.errors import ControlError
from cc.parameters import build
from testbed import metrics
from testbed.job import Faults, Hole
from testbed.units import parse_size
from testbed.workloads import basic, moe, routing
from testbed.workloads.base import Workload
from transport.clock import NEVER, US
from transport.config import EndpointConfig
from transport.errors import ConfigError

_DEFAULT = EndpointConfig()

Size: TypeAlias = Annotated[int, BeforeValidator(parse_size), PlainSerializer(lambda size: size)]
Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
Op: TypeAlias = Literal["write", "write_imm", "send", "read"]


class Section(BaseModel):
    """Base of all sections: no unknown keys, no conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TransportSection(Section):
    """How every endpoint is configured; ranges and defaults are those of transport.config.EndpointConfig."""

    paths: int = _DEFAULT.paths
    entropies: list[int] | None = None
    entropy_mask: int | None = None
    floor: int = _DEFAULT.floor
    selector: str = _DEFAULT.selector
    cc: str = str(_DEFAULT.control)
    cc_parameters: dict[str, int | float | bool] = Field(default_factory=dict)
    mtu: int = _DEFAULT.mtu
    max_run: int = _DEFAULT.max_run
    window: int = _DEFAULT.window
    retries: int = _DEFAULT.retries
    rto_min_us: Annotated[int, Field(ge=0)] = 0
    ack_every: Size = _DEFAULT.ack_every
    inline: Size = _DEFAULT.inline
    sq_depth: int = _DEFAULT.sq_depth
    rq_depth: int = _DEFAULT.rq_depth
    icrc: bool = _DEFAULT.icrc

    def config(self) -> EndpointConfig:
        """The endpoint's configuration. ConfigError names a field, its value and what is allowed."""
        try:
            build(registry.resolve(self.cc).Parameters, self.cc_parameters)
        except ControlError as error:
            raise ConfigError(f"cc = {self.cc!r}: {error}") from None
        return EndpointConfig(
            mtu=self.mtu, max_run=self.max_run, paths=self.paths,
            entropies=None if self.entropies is None else tuple(self.entropies), entropy_mask=self.entropy_mask,
            floor=self.floor,
            selector=self.selector, control=self.cc, control_parameters=self.cc_parameters, window=self.window,
            sq_depth=self.sq_depth, rq_depth=self.rq_depth, inline=self.inline, retries=self.retries,
            rto_min=self.rto_min_us * US, ack_every=self.ack_every, icrc=self.icrc,
        )  # fmt: skip


class FabricSection(Section):
    """The network of `--on loopback`; `--on udp` has the one that is there.

    rate_gbps: each receiver's link, 0 for infinitely fast. delay_us: one way. queue: bytes of the queue in front of the
    link, ecn: bytes in it from which packets are marked; neither is limited if not given.
    """

    rate_gbps: Annotated[float, Field(ge=0, le=1600)] = 100.0
    delay_us: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    queue: Size | None = None
    ecn: Size | None = None


class UdpSection(Section):
    """What is different over `--on udp`. time_scale: times of faults, and intervals between messages, are multiplied by
    this, since round trips between processes are that much longer than those of the fabric."""

    time_scale: Annotated[float, Field(gt=0, le=1e6)] = 1.0


class Blackhole(Section):
    """Path number `path` swallows what it is given from `start_us` on, until `end_us` (or for good), counted from the
    start of the first phase."""

    path: Annotated[int, Field(ge=0)]
    start_us: Annotated[float, Field(ge=0)] = 0.0
    end_us: Annotated[float, Field(gt=0)] | None = None


class FaultsSection(Section):
    """What happens to packets on top of the network, seeded.

    loss, duplicate, corrupt, mark, reorder: probabilities of a packet. reorder_us: how long a reordered packet is held
    back. jitter_us: largest extra delay of a packet; with fifo, each path has its own constant share of it instead.
    """

    loss: Share = 0.0
    duplicate: Share = 0.0
    corrupt: Share = 0.0
    mark: Share = 0.0
    reorder: Share = 0.0
    reorder_us: Annotated[float, Field(ge=0, le=1e6)] = 100.0
    jitter_us: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    fifo: bool = False
    blackhole: list[Blackhole] = Field(default_factory=list)

    def plan(self, scale: float) -> Faults:
        """The same as plain data, in picoseconds. All times are multiplied by `scale`."""
        us = scale * US
        return Faults(
            loss=self.loss, duplicate=self.duplicate, corrupt=self.corrupt, mark=self.mark, reorder=self.reorder,
            reorder_delay=round(self.reorder_us * us) if self.reorder else 0, jitter=round(self.jitter_us * us),
            fifo=self.fifo,
            holes=tuple(
                Hole(hole.path, round(hole.start_us * us), NEVER if hole.end_us is None else round(hole.end_us * us))
                for hole in self.blackhole
            ),
        )  # fmt: skip


class _Flows(Section):
    """interval_us: from one message of a flow to the next at least, 0 for as fast as depth allows."""

    messages: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    size: Size = 1 << 20
    op: Op = "write"
    depth: Annotated[int, Field(ge=1, le=1024)] = 16
    interval_us: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    def flow(self, scale: float) -> basic.Flow:
        return basic.Flow(self.messages, self.size, self.op, self.depth, round(self.interval_us * scale * US))


class PairWorkload(_Flows):
    """Rank 0 sends to rank 1."""

    kind: Literal["pair"]
    ranks: Literal[2] = 2
    phases: Annotated[int, Field(ge=1, le=1000)] = 1

    def make(self, seed: int, scale: float) -> Workload:
        return basic.pair(self.flow(scale), self.phases)


class IncastWorkload(_Flows):
    """All ranks send to rank 0."""

    kind: Literal["incast"]
    ranks: Annotated[int, Field(ge=2, le=64)] = 9

    def make(self, seed: int, scale: float) -> Workload:
        return basic.incast(self.ranks, self.flow(scale))


class PermutationWorkload(_Flows):
    """Every rank sends to one and receives from one."""

    kind: Literal["permutation"]
    ranks: Annotated[int, Field(ge=2, le=64)] = 8

    def make(self, seed: int, scale: float) -> Workload:
        return basic.permutation(self.ranks, self.flow(scale), seed)


class MoeWorkload(Section):
    """Dispatch and combine of mixture-of-experts layers with measured expert popularity.

    size: a preset of tokens (on each rank) and hidden (elements of a token's vector); either may be given as well.
    """

    kind: Literal["moe"]
    ranks: Annotated[int, Field(ge=2, le=64)] = 8
    size: Literal["full", "small"] = "full"
    model: str = "olmoe"
    domain: str = "wikipedia"
    layers: Annotated[list[int], Field(min_length=1)] = Field(default_factory=lambda: [0, 7, 15])
    tokens: Annotated[int, Field(ge=1, le=65536)] | None = None
    hidden: Annotated[int, Field(ge=1, le=65536)] | None = None
    op: Op = "write_imm"

    def make(self, seed: int, scale: float) -> Workload:
        tokens, hidden = (512, 2048) if self.size == "full" else (64, 128)
        return moe.moe(
            self.ranks,
            self.model,
            self.domain,
            self.layers,
            self.tokens or tokens,
            self.hidden or hidden,
            self.op,
            seed,
        )

    def check(self) -> None:
        for layer in self.layers:
            experts = len(routing.popularity(self.model, self.domain, layer).counts)
            if experts % self.ranks:
                raise ConfigError(f"ranks = {self.ranks}: {self.model} has {experts} experts, allowed are its divisors")


AnyWorkload: TypeAlias = Annotated[
    Union[PairWorkload, IncastWorkload, PermutationWorkload, MoeWorkload],  # noqa: UP007  pydantic reads the Union
    Field(discriminator="kind"),
]


class Limit(Section):
    """What a metric is held to: at most `max`, at least `min`, or exactly `equals`."""

    max: float | None = None
    min: float | None = None
    equals: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.max is None or value <= self.max)
            and (self.min is None or value >= self.min)
            and (self.equals is None or value == self.equals)
        )

    def __str__(self) -> str:
        signs = (("<=", self.max), (">=", self.min), ("=", self.equals))
        return ", ".join(f"{sign} {value:g}" for sign, value in signs if value is not None)


def _limit(value: object) -> object:
    return {"max": value} if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Expectations: TypeAlias = dict[str, Annotated[Limit, BeforeValidator(_limit)]]


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
        return parse(text, which, overrides)
    if which not in _shipped():
        raise ConfigError(
            f"scenario {which!r} is unknown; known: {', '.join(_shipped())}; or a file that ends in .toml"
        )
    return parse(_shipped_text(which), f"{which}.toml", overrides)


def parse(text: str, source: str, overrides: Sequence[str] = ()) -> Scenario:
    """A scenario out of TOML text. source: what to call it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from None
    where = _Where(text, source)
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
        settings = _validate(values, inside)
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


class _Where:
    """Finds the place of a key, for errors: an override by which it was set, or the line of the file."""

    def __init__(self, text: str, source: str, origins: Mapping[tuple[str, ...], str] | None = None) -> None:
        self.text = text
        self.source = source
        self.origins = dict(origins or {})

    def with_origin(self, location: tuple[str, ...], origin: str) -> _Where:
        return _Where(self.text, self.source, {**self.origins, location: origin})

    def __call__(self, location: Sequence[str | int]) -> str:
        names = tuple(str(part) for part in location)
        for length in range(len(names), 0, -1):
            if names[:length] in self.origins:
                return self.origins[names[:length]]
        line = self._line(names)
        return f"{self.source}, line {line}" if line else self.source

    def _line(self, names: tuple[str, ...]) -> int:
        """Line of the deepest part of a key that the text shows, 0 if there is none. Counts [[tables]] of one name."""
        best, depth = 0, 0
        table: tuple[str, ...] = ()
        seen: dict[str, int] = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?", line)
            if header and not re.match(r"\s*\[.*=", line):
                table = tuple(part.strip().strip('"') for part in header[2].split("."))
                if header[1] == "[[":
                    seen[header[2]] = seen.get(header[2], -1) + 1
                    table = (*table, str(seen[header[2]]))
                here = table
            else:
                assigned = re.match(r"\s*([A-Za-z0-9_.\"-]+)\s*=", line)
                if not assigned:
                    continue
                here = (*table, *(part.strip('"') for part in assigned[1].split(".")))
            if len(here) > depth and names[: len(here)] == here:
                best, depth = number, len(here)
        return best


def _validate(data: Mapping[str, Any], where: _Where) -> ScenarioFile:
    try:
        return ScenarioFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, where) for item in error.errors()[:5])) from None


def _explain(item: Any, where: _Where) -> str:
    """One of pydantic's findings as a line."""
    location: tuple[str | int, ...] = item["loc"]
    if location[:1] == ("workload",) and len(location) > 1 and location[1] in _kinds():
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
        return f"{place}: workload.kind = {item['input'].get('kind')!r}: allowed are {', '.join(_kinds())}"
    if problem == "union_tag_not_found":
        return f"{place}: key workload.kind is missing; allowed are {', '.join(_kinds())}"
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return f"{place}: {key}: {cause}"
    return f"{place}: {key} = {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"


def _kinds() -> dict[str, type[Section]]:
    models: Iterable[type[Section]] = get_args(get_args(AnyWorkload)[0])
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in models}


def _fields(location: Sequence[str | int], kind: str) -> list[str]:
    """The keys that the section at a location has."""
    sections: dict[str, type[Section]] = {
        "transport": TransportSection, "fabric": FabricSection, "udp": UdpSection, "faults": FaultsSection,
        "variant": VariantSection,
    }  # fmt: skip
    names = [part for part in location if isinstance(part, str)]
    if not names:
        model: type[Section] = ScenarioFile
    elif names[0] == "workload":
        model = _kinds()[kind]
    elif "blackhole" in names:
        model = Blackhole
    elif "expect" in names:
        model = Limit
    else:
        model = sections.get(names[0], ScenarioFile)
    return list(model.model_fields)


def _checked(settings: ScenarioFile, where: _Where) -> EndpointConfig:
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
    if isinstance(workload, MoeWorkload):
        try:
            workload.check()
        except ConfigError as error:
            raise ConfigError(f"{where(('workload', str(error).split(' ', 1)[0]))}: workload: {error}") from None
    elif workload.depth > config.sq_depth:
        raise ConfigError(
            f"{where(('workload', 'depth'))}: workload.depth = {workload.depth}: at most transport.sq_depth = "
            f"{config.sq_depth} is allowed"
        )
    paths = len(config.ports())
    for i, hole in enumerate(settings.faults.blackhole):
        here = where(("faults", "blackhole", i))
        if hole.path >= paths:
            raise ConfigError(f"{here}: faults.blackhole.path = {hole.path}: allowed are 0 to {paths - 1}")
        if hole.end_us is not None and hole.end_us <= hole.start_us:
            raise ConfigError(f"{here}: faults.blackhole.end_us = {hole.end_us}: it is not after start_us")
    return config


def _check_variants(variants: Sequence[Variant], where: _Where) -> None:
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
