"""The one boundary between the transport core and a network."""
