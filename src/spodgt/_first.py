"""Imported first: what must be settled before torch is imported.

OpenMP reads its wait policy when torch starts its threads. Threads that spin while they wait for each other
make many small operations eight times slower as soon as anything else runs on the machine; sleeping costs
microseconds. Whoever sets OMP_WAIT_POLICY decides otherwise, and whoever imports torch before spodgt keeps
the default.

Imports make a million objects and no garbage, so the collector rests until `done`: a fifth of the time.
"""

import gc
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
_collects = gc.isenabled()
gc.disable()


def done() -> None:
    """The imports are over."""
    if _collects:
        gc.enable()
