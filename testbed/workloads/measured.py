"""The popularity of experts that was measured in OLMoE and Mixtral; the table comes with the package."""

from __future__ import annotations

from functools import cache
from importlib import resources

from testbed.workloads.readers import counts
from testbed.workloads.routing import Popularity
from transport.errors import ConfigError

TABLE = "olmoe_mixtral_layer_expert_counts.csv"


@cache
def table() -> counts.Table:
    """All that was measured."""
    text = resources.files("testbed.workloads").joinpath("data", TABLE).read_text(encoding="utf-8")
    return counts.parse(text, TABLE)


def popularity(model: str, domain: str, layer: int) -> Popularity:
    """The measured popularity of one layer. ConfigError lists what there is."""
    return pick(table(), model, domain, layer)


def pick(known: counts.Table, model: str, domain: str, layer: int) -> Popularity:
    """One layer of a table. ConfigError lists what there is."""
    models = sorted({key.model for key in known})
    domains = sorted({key.domain for key in known if key.model == model})
    layers = sorted({key.layer for key in known if (key.model, key.domain) == (model, domain)})
    for name, value, allowed in (("model", model, models), ("domain", domain, domains), ("layer", layer, layers)):
        if value not in allowed:
            raise ConfigError(f"{name} = {value!r}: allowed are {', '.join(map(str, allowed))}")
    return known[counts.Key(model, domain, layer)]
