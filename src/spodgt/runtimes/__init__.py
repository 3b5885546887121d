"""Runtimes: the simulator, several processes, and discrete-event simulation (virtual time)."""
