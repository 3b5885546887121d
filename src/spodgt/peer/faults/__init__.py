"""Fault injection for tests and the demo: lost frames, crash points, and a fleet of processes to kill."""
