"""Readers of what other tools wrote: routing traces, expert counts, matrices of bytes and connections, topologies. One
file for each format.

Each has `parse(text, source)`; what is wrong with a file is a ConfigError that names the file, the line and the value.
"""
