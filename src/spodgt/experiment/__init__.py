"""What is run: `Experiment` and its options, TOML in and out, and the draw of a seed."""

from spodgt.experiment.early_stopping import EarlyStopping
from spodgt.experiment.experiment import Experiment
from spodgt.experiment.problem_recipes import (
    PROBLEMS,
    Classification,
    ProblemRecipe,
    RandomQuadratic,
)
from spodgt.experiment.run_options import PAPER_METHODS, ExperimentOptions, RunOptions
from spodgt.experiment.toml import read_toml, value_of
from spodgt.problems.python_problem import PythonProblem
from spodgt.runtimes.world import Draw

__all__ = [
    "PAPER_METHODS",
    "PROBLEMS",
    "Classification",
    "Draw",
    "EarlyStopping",
    "Experiment",
    "ExperimentOptions",
    "ProblemRecipe",
    "PythonProblem",
    "RandomQuadratic",
    "RunOptions",
    "read_toml",
    "value_of",
]
