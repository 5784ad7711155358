"""Bandwidth and latency between two endpoints over UDP sockets, in the habit of perftest."""
