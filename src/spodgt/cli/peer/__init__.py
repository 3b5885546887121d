"""`spodgt peer`: clients as real processes. Importing the modules registers their commands."""

from spodgt.cli.peer import manifest_changes, process, setup, storage

__all__ = ["manifest_changes", "process", "setup", "storage"]
