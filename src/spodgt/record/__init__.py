"""What happened: the `Record`, its folder on disk, and the table of metrics."""

from spodgt.record.metrics import METRICS, Metric, RunSnapshot, measure
from spodgt.record.record import Diverged, Record
from spodgt.record.sweep import CellRecord, Scale, SweepRecord

__all__ = [
    "METRICS",
    "CellRecord",
    "Diverged",
    "Metric",
    "Record",
    "RunSnapshot",
    "Scale",
    "SweepRecord",
]
__all__ += ["measure"]
