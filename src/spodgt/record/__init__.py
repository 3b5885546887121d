"""What happened: the `Record`, its folder on disk, and the table of metrics."""

from spodgt.record.metrics import METRICS, Metric, Snapshot, measure
from spodgt.record.record import Diverged, Record
from spodgt.record.sweep import CellRecord, Scale, SweepRecord

__all__ = [
    "METRICS",
    "CellRecord",
    "Diverged",
    "Metric",
    "Record",
    "Scale",
    "Snapshot",
    "SweepRecord",
    "measure",
]
