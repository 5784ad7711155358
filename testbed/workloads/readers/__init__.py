"""Readers of routing traces, expert counts and byte matrices that other tools wrote. One file for each format.

Each has `parse(text, source)`; what is wrong with a file is a ConfigError that names the file, the line and the value.
"""
