"""A client as a process: its round loop, local computation, membership and status."""
