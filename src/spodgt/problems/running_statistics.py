"""The check for runtimes that cannot exchange running statistics.

Running statistics (BatchNorm) are columns of a model after its parameters, see `models.parameters`.
"""

from __future__ import annotations

from spodgt.errors import InvalidInput
from spodgt.types import Problem


def refuse_statistics(problem: Problem, runtime: str) -> None:
    """Refuse a problem with running statistics on a runtime that cannot exchange them.

    Args:
        problem: any problem.
        runtime: name of the runtime for the error message.

    Raises:
        InvalidInput: if models of the problem have running statistics.
    """
    columns = problem.statistics(0).shape[1] - problem.private
    if columns:
        raise InvalidInput(
            f"model must not keep running statistics on {runtime}, got {columns} of them; "
            "use torch.nn.GroupNorm instead of BatchNorm, or train in the simulator."
        )
