"""Imported first: OpenMP reads this before torch starts its threads.

Threads that spin while they wait for each other make many small operations eight times slower as soon as
anything else runs on the machine; sleeping costs microseconds.
Whoever sets OMP_WAIT_POLICY decides otherwise, and whoever imports torch before spodgt keeps the default.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
