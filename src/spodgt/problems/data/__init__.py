"""Data: the sets, how to get them, and how they are dealt out to clients."""

from spodgt._util.files import data_directory
from spodgt.problems.data.datasets import Dataset, Row, Split, available, load
from spodgt.problems.data.download import get, import_
from spodgt.problems.data.partitions import (
    IID,
    PARTITIONS,
    BySpeaker,
    Dirichlet,
    Explicit,
    LabelsPerClient,
    Partition,
)
from spodgt.problems.data.text_corpora import Texts, load_texts

__all__ = [
    "IID",
    "PARTITIONS",
    "BySpeaker",
    "Dataset",
    "Dirichlet",
    "Explicit",
    "LabelsPerClient",
    "Partition",
    "Row",
    "Split",
    "Texts",
    "available",
    "data_directory",
    "get",
    "import_",
    "load",
    "load_texts",
]
