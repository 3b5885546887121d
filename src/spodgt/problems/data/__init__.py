"""Data: the sets, how to get them, and how they are dealt out to clients."""

from spodgt.problems.data.datasets import Dataset, Row, Split, available, data_directory, load
from spodgt.problems.data.fetch import get, import_
from spodgt.problems.data.partitions import IID, PARTITIONS, Dirichlet, Explicit, LabelsPerClient, Partition

__all__ = [
    "IID",
    "PARTITIONS",
    "Dataset",
    "Dirichlet",
    "Explicit",
    "LabelsPerClient",
    "Partition",
    "Row",
    "Split",
    "available",
    "data_directory",
    "get",
    "import_",
    "load",
]
