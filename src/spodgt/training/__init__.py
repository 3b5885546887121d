"""Train one method, compare several, or run an experiment.

api.py                      train, compare, run; they build an Executor
executor.py workers.py      runs all methods, in this process or in worker processes
observer.py evaluation.py   evaluates, records and saves the runs of one method
capture.py                  when checkpoints are due, and what they hold of a run
checkpoint.py resume.py     the log of a method and its file; where interrupted runs continue
comparison.py               all runs of all methods with their logs
comparison_files.py code_copies.py  files in the run folder; copies of the user's code there
stopping.py                 early stopping and best models
settings.py                 how runs are executed
result.py tables.py         the result, and its tables
broadcast.py                the result in all processes of torchrun
progress.py loggers.py      progress bars; TensorBoard, Weights & Biases, MLflow
"""

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
