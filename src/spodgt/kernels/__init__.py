"""Compiled loops, each beside its plain twin, and the registry of compiled steps."""
