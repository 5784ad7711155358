"""The transport for programs: the verbs' nouns with two faces, `transport.api.aio` and `transport.api.blocking`.

Both have the same classes and methods; one is awaited, the other waits. docs/api.md is the tutorial.
"""
