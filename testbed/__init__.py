"""Scenarios, workloads, the runner and the command line."""
