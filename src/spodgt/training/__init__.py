"""Train one method, compare several."""

from spodgt.training.api import Glimpse, Method, Progress, compare, run, train

__all__ = ["Glimpse", "Method", "Progress", "compare", "run", "train"]
