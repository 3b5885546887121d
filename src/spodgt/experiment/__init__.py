"""What is run: `Experiment` and its options, TOML in and out, and the draw of a seed."""

from spodgt.experiment.config import read_toml, value_of
from spodgt.experiment.experiment import PAPER_METHODS, Experiment, RunOptions
from spodgt.experiment.problems import PROBLEMS, Classification, ProblemRecipe, RandomQuadratic
from spodgt.problems.python_problem import PythonProblem
from spodgt.runtimes.world import Draw

__all__ = [
    "PAPER_METHODS",
    "PROBLEMS",
    "Classification",
    "Draw",
    "Experiment",
    "ProblemRecipe",
    "PythonProblem",
    "RandomQuadratic",
    "RunOptions",
    "read_toml",
    "value_of",
]
