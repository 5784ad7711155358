"""Counters of one endpoint. Everything that is dropped is counted by cause."""

from __future__ import annotations


class Counters:
    """Totals since the endpoint was made. Packets count segments, bytes count payload.

    early_retransmits: those of copies that had left within one base round trip of the first segment of their message,
    when nobody can know yet who else sends.
    """

    def __init__(self) -> None:
        self.packets_sent = 0
        self.packets_received = 0
        self.data_packets_sent = 0
        self.data_packets_received = 0
        self.data_bytes_sent = 0
        self.bytes_placed = 0
        self.retransmits = 0
        self.retransmitted_bytes = 0
        self.early_retransmits = 0
        self.losses = 0
        self.timeouts = 0
        self.tail_probes = 0
        self.go_backs = 0
        self.duplicates = 0
        self.control_duplicates = 0
        self.spurious = 0
        self.acks_sent = 0
        self.acks_received = 0
        self.stale_acks = 0
        self.marked_packets = 0
        self.control_sent = 0
        self.control_retransmits = 0
        self.probes_sent = 0
        self.probes_received = 0
        self.rejects_sent = 0
        self.trims_received = 0
        self.nacks_sent = 0
        self.messages_delivered = 0
        self.requests_completed = 0
        self.requests_failed = 0
        self.dropped_unknown_qpn = 0
        self.dropped_wrong_address = 0
        self.dropped_wrong_state = 0
        self.dropped_wrong_tag = 0
        self.dropped_outside_window = 0
        self.dropped_out_of_order = 0
        self.dropped_bad_key = 0
        self.dropped_bad_length = 0
        self.dropped_bad_ack = 0
        self.dropped_bad_control = 0
        self.dropped_bad_probe = 0
        self.dropped_bad_reject = 0
        self.dropped_cnp = 0

    def as_dict(self) -> dict[str, int]:
        """All counters by name."""
        return {name: getattr(self, name) for name in NAMES}


NAMES: tuple[str, ...] = (
    "packets_sent",
    "packets_received",
    "data_packets_sent",
    "data_packets_received",
    "data_bytes_sent",
    "bytes_placed",
    "retransmits",
    "retransmitted_bytes",
    "early_retransmits",
    "losses",
    "timeouts",
    "tail_probes",
    "go_backs",
    "duplicates",
    "control_duplicates",
    "spurious",
    "acks_sent",
    "acks_received",
    "stale_acks",
    "marked_packets",
    "control_sent",
    "control_retransmits",
    "probes_sent",
    "probes_received",
    "rejects_sent",
    "trims_received",
    "nacks_sent",
    "messages_delivered",
    "requests_completed",
    "requests_failed",
    "dropped_unknown_qpn",
    "dropped_wrong_address",
    "dropped_wrong_state",
    "dropped_wrong_tag",
    "dropped_outside_window",
    "dropped_out_of_order",
    "dropped_bad_key",
    "dropped_bad_length",
    "dropped_bad_ack",
    "dropped_bad_control",
    "dropped_bad_probe",
    "dropped_bad_reject",
    "dropped_cnp",
)
