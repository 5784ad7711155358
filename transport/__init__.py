"""A multipath RoCEv2 transport in user space: the sans-IO core and its Nics."""
