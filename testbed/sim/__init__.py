"""A fabric of switches and links in virtual time, behind the same Nic as real networks."""
