"""The state of a client on disk: commits, reading after a crash, backups."""
