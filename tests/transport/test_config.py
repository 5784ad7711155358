"""Configuration, what peers tell each other, and how two of them agree or do not."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import ALICE, CAPS, Pair
from transport.clock import MS
from transport.config import ConnectionParameters, EndpointConfig, negotiate
from transport.endpoint import Endpoint
from transport.errors import ConfigError, NegotiationError
from transport.states import State
from transport.wire import max_ack_bits

BAD = [
    ("mtu", 0), ("mtu", 1500), ("mtu", 4095), ("mtu", 8192), ("mtu", "4096"), ("mtu", 4096.0), ("mtu", None),
    ("paths", 0), ("paths", -1), ("paths", 20000), ("paths", 1.5), ("paths", "16"), ("paths", True),
    ("entropies", ()),
    ("max_run", 0), ("max_run", 1025), ("max_run", 2.0),
    ("floor", -1), ("floor", 17),
    ("window", 15), ("window", 32769), ("window", 1 << 24), ("window", None),
    ("sq_depth", 0), ("sq_depth", (1 << 20) + 1),
    ("rq_depth", 0), ("rq_depth", (1 << 20) + 1),
    ("max_rd_atomic", 0), ("max_rd_atomic", 65),
    ("inline", -1), ("inline", 257),
    ("retries", 0), ("retries", 65),
    ("rto_min", -1), ("rto_min", 60_001 * MS),
    ("ack_every", 0), ("ack_every", (1 << 24) + 1),
    ("icrc", "off"), ("icrc", 0), ("icrc", None),
    ("control", 5), ("control", None), ("control", int),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda item: repr(item))
def test_a_bad_value_is_refused_by_field_and_value(name, value):
    field = "paths" if name == "entropies" else name
    shown = "0" if name == "entropies" else repr(value)
    with pytest.raises(ConfigError) as caught:
        EndpointConfig(**{name: value})
    assert str(caught.value).startswith(f"{field} = {shown}")
    assert "allowed" in str(caught.value)


LIMITS = [
    ("mtu", 256), ("mtu", 4096), ("paths", 1), ("paths", 4096), ("max_run", 1), ("max_run", 1024), ("floor", 0),
    ("floor", 16), ("window", 16), ("window", 32768), ("sq_depth", 1), ("sq_depth", 1 << 20), ("rq_depth", 1),
    ("max_rd_atomic", 1), ("max_rd_atomic", 64), ("inline", 0), ("inline", 256), ("retries", 1), ("retries", 64),
    ("rto_min", 60_000 * MS), ("ack_every", 1), ("ack_every", 1 << 24),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), LIMITS, ids=lambda item: repr(item))
def test_the_limits_themselves_are_allowed(name, value):
    assert getattr(EndpointConfig(**{name: value}), name) == value


def test_an_unknown_selector_lists_the_known_ones():
    with pytest.raises(ConfigError, match="round_robin"):
        EndpointConfig(selector="fastest")


def test_an_unknown_control_is_refused_before_anything_is_connected():
    pair = Pair(control="reno")
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    theirs = pair.bob.endpoint.create_connection(pair.bob.endpoint.protection_domain(), pair.now)
    with pytest.raises(ValueError, match=r"'reno' is unknown.*dctcp"):
        ours.connect(pair.now, theirs.parameters)
    assert ours.state == State.INIT


def test_a_control_that_needs_marks_is_refused_where_the_nic_gives_none():
    pair = Pair(control="dctcp", caps=replace(CAPS, ecn=False))
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    theirs = pair.bob.endpoint.create_connection(pair.bob.endpoint.protection_domain(), pair.now)
    with pytest.raises(ConfigError, match="dctcp needs ecn"):
        ours.connect(pair.now, theirs.parameters)
    assert ours.state == State.INIT
    assert not pair.alice.endpoint.peers


def test_what_the_nic_cannot_do_is_refused():
    rng = random.Random(1)
    with pytest.raises(ConfigError, match="mtu = 4096: this Nic carries at most 1024"):
        Endpoint(EndpointConfig(mtu=4096), ALICE, replace(CAPS, mtu=1024), rng)
    with pytest.raises(ConfigError, match="paths = 16: this Nic sends from at most 8 source ports"):
        Endpoint(EndpointConfig(paths=16), ALICE, replace(CAPS, max_entropies=8), rng)
    with pytest.raises(ConfigError, match="address"):
        Endpoint(EndpointConfig(), b"\x7f\0\0", CAPS, rng)


PARAMETERS = ConnectionParameters(
    version=2, addresses=("0a000001",), qpn=0x123456, tag=7, dsn=0xFFFFFFFF, csn=0, mtu=4096, window=2048,
    max_rd_atomic=16, inline=256, icrc="off", control="dctcp", mode="multipath",
)  # fmt: skip


def test_parameters_survive_json():
    assert ConnectionParameters.from_json(json.loads(json.dumps(PARAMETERS.to_json()))) == PARAMETERS


@pytest.mark.parametrize("name", sorted(PARAMETERS.to_json()))
def test_a_missing_parameter_is_named(name):
    data = PARAMETERS.to_json()
    del data[name]
    with pytest.raises(NegotiationError, match=f"{name} is missing"):
        ConnectionParameters.from_json(data)


@pytest.mark.parametrize("name", sorted(PARAMETERS.to_json()))
@pytest.mark.parametrize("value", [None, 1.5, True, [], {}, -1, 1 << 32, b""], ids=repr)
def test_a_parameter_of_the_wrong_type_or_range_is_named(name, value):
    with pytest.raises(NegotiationError, match=f"parameter {name} = "):
        ConnectionParameters.from_json({**PARAMETERS.to_json(), name: value})


def test_an_unknown_parameter_is_refused_not_ignored():
    with pytest.raises(NegotiationError, match="parameter compression = 'zstd' is unknown"):
        ConnectionParameters.from_json({**PARAMETERS.to_json(), "compression": "zstd"})


@pytest.mark.parametrize("data", [None, 5, "version", [], [["version", 1]], [1, 2]], ids=repr)
def test_something_that_is_no_object_is_refused(data):
    with pytest.raises(NegotiationError):
        ConnectionParameters.from_json(data)


DISAGREEMENTS = [
    ("version", 3, "version: 2 here, 3 at the peer"),
    ("icrc", "exact", "icrc: 'off' here, 'exact' at the peer"),
    ("mtu", 1500, "mtu: 1500"),
    ("mtu", 0, "mtu: 0"),
    ("addresses", ("",), "addresses"),
    ("addresses", ("0a00000",), "addresses: '0a00000'"),
    ("addresses", ("0a00000g",), "addresses: '0a00000g'"),
    ("addresses", ("0a  0001",), "addresses"),
    ("addresses", ("0a" * 16,), "addresses"),
    ("addresses", (), "addresses: 1 here, 0 at the peer"),
    ("addresses", ("0a000002", "0a010002"), "addresses: 1 here, 2 at the peer"),
    ("qpn", 1 << 24, "qpn"),
    ("qpn", 0, "qpn"),
    ("qpn", 1, "qpn"),
    ("window", 1 << 16, "window"),
    ("window", 15, "window: 15"),
    ("max_rd_atomic", 256, "max_rd_atomic"),
    ("max_rd_atomic", 0, "max_rd_atomic: 0"),
    ("inline", 257, "inline"),
]


@pytest.mark.parametrize(("name", "value", "text"), DISAGREEMENTS)
def test_what_cannot_be_agreed_on_is_named_with_the_peers_value(name, value, text):
    with pytest.raises(NegotiationError) as caught:
        negotiate(PARAMETERS, replace(PARAMETERS, **{name: value}))
    assert text in str(caught.value)


TWO = replace(PARAMETERS, addresses=("0a000001", "0a010001"))


@pytest.mark.parametrize(
    ("addresses", "text"),
    [
        (("0a000002",), "addresses: 2 here, 1 at the peer"),
        (("0a000002", "0a010002", "0a020002"), "addresses: 2 here, 3 at the peer"),
        (("0a000002", "0a000002"), "there twice"),
        (("0a00000a", "0A00000A"), "there twice"),
        (("0a000002", "0a010002" * 4), "one family"),
    ],
)
def test_planes_that_do_not_match_are_refused_with_both_values(addresses, text):
    with pytest.raises(NegotiationError) as caught:
        negotiate(TWO, replace(TWO, addresses=addresses))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "addresses",
    [(), (ALICE, ALICE), (ALICE, ALICE * 4), (ALICE, b"\x7f"), tuple(bytes([10, 0, 0, i]) for i in range(9))],
    ids=["none", "one twice", "two families", "three bytes missing", "nine"],
)
def test_an_endpoint_has_one_to_eight_addresses_of_one_family(addresses):
    with pytest.raises(ConfigError, match="address = "):
        Endpoint(EndpointConfig(), addresses, CAPS, random.Random(1))


def test_the_smaller_of_each_limit_is_agreed_on_by_both_sides():
    small = replace(PARAMETERS, mtu=1024, max_rd_atomic=3, inline=0, window=64)
    for one, other in ((small, PARAMETERS), (PARAMETERS, small)):
        agreed = negotiate(one, other)
        assert (agreed.mtu, agreed.max_rd_atomic, agreed.inline, agreed.window) == (1024, 3, 0, 64)


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_the_agreed_window_fits_the_bitmaps_of_an_ack_and_half_the_psn_space(mtu):
    agreed = negotiate(replace(PARAMETERS, mtu=mtu, window=32768), replace(PARAMETERS, window=32768))
    assert 16 <= agreed.window <= max_ack_bits(mtu) * 2 // 3
    assert agreed.window < 1 << 23


def test_two_endpoints_of_different_mtu_use_the_smaller_one():
    pair = Pair(mtu=4096, control="fixed")
    pair.bob.endpoint.config = EndpointConfig(mtu=1024, control="fixed")
    ours, theirs = pair.connect()
    assert ours.context.segment == theirs.context.segment == 1024


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 40), 1 << 40) | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
almost = st.dictionaries(
    st.sampled_from(sorted(PARAMETERS.to_json())),
    st.one_of(
        json_values,
        st.sampled_from([0, 1, 2, 16, 255, 256, 257, 4096, 65535, 65536, (1 << 24) - 1, 1 << 24, (1 << 32) - 1]),
        st.sampled_from(["", "off", "id0", ["0a000002"], ["0A00000F"], ["  000002"], ["00" * 16], ["é" * 8], ["", ""]]),
    ),
)


@given(data=st.one_of(json_values, almost.map(lambda changes: {**PARAMETERS.to_json(), **changes})))
def test_garbage_from_a_peer_is_an_agreement_or_a_negotiation_error(data):
    pair = Pair(control="fixed", icrc=False)
    ours = pair.alice.endpoint.create_connection(pair.alice.endpoint.protection_domain(), pair.now)
    try:
        ours.connect(pair.now, ConnectionParameters.from_json(data))
    except NegotiationError:
        assert ours.state == State.INIT
        assert not pair.alice.endpoint.peers
    else:
        assert ours.state == State.RTS
        assert len(ours.context.planes[0][1]) == 4
        assert 256 <= ours.context.segment <= 4096
        pair.alice.endpoint.poll_transmit(pair.now, 64)
