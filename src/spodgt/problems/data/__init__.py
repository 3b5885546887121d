"""Data: the data sets, how to get them, and how they are divided among clients.

catalog.py datasets.py download.py
                                data sets by name: how to get, load and download them
image_formats.py text_corpora.py file_errors.py
                                file formats, and the errors about files
partitions.py holdout.py        dividing samples among clients; validation samples
readers.py client_sources.py    data sets of a user
client_data.py samples.py evaluation_data.py client_weights.py
                                the data of all clients
augmentation.py                 random crops and flips of a mini-batch
pytree.py                       nested dicts, tuples and lists of tensors
"""

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
