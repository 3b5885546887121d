"""Train one method, compare several, or run an experiment."""

from spodgt.training.api import Method, compare, run, train
from spodgt.training.progress import Progress
from spodgt.training.result import Result

__all__ = ["Method", "Progress", "Result", "compare", "run", "train"]
