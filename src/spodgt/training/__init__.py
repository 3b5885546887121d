"""Train one method, compare several, or run an experiment."""

from spodgt.training.api import ExecutionOptions, Method, TrainOptions, compare, run, train
from spodgt.training.progress import Progress
from spodgt.training.result import Result
from spodgt.training.stopping import STOP

__all__ = [
    "STOP",
    "ExecutionOptions",
    "Method",
    "Progress",
    "Result",
    "TrainOptions",
    "compare",
    "run",
    "train",
]
