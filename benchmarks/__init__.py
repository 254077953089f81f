"""Measures Draftgate beside its peers and the machine's limits; see docs/performance.md."""
