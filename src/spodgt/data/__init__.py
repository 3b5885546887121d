"""Data: the sets, how to get them, and how they are dealt out to clients."""

from spodgt.data.datasets import Dataset, Row, Split, available, data_directory, load
from spodgt.data.fetch import get, import_
from spodgt.data.partitions import IID, Dirichlet, Explicit, LabelsPerClient, Partition

__all__ = [
    "IID",
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
