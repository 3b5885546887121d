"""Compiled loops (numba) and their plain equivalents; tracing of steps that are linear in the state."""
