"""Congestion control: policy only. The engine owns the bytes in flight."""
