"""Workloads: who sends how much to whom, in which phase. Data only; ranks carry it out."""
