"""Next-character prediction as a recipe: `[problem] kind = "text"`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from spodgt.errors import InvalidInput
from spodgt.experiment.problems import PROBLEMS, Validation, check_partition, check_weighting
from spodgt.problems.data import BySpeaker, Partition
from spodgt.problems.data.client_weights import EQUAL
from spodgt.problems.data.datasets import TEXTS
from spodgt.problems.text import speeches
from spodgt.types import Problem
from spodgt.validation import Field, FieldHint, Whole, one_of, recipe

_SOME = Field(ge=1)


@recipe(InvalidInput, PROBLEMS)
class Speeches:
    """A character-level transformer on texts by speaker.

    Args:
        data: The data set.
        context: Characters that the model sees at most.
        batch_size: Windows of text in a gradient; 0 for all a client holds.
        partition: Who gets which windows, by their speakers.
        client_weights: How much the loss of each client counts in the objective: "equal" (if None), or
            "samples" for as much as it holds.
        test_samples: Evaluate on only so many windows, spread over all speakers; all if None.
        validation: Hold this fraction of each client's windows out of training, to choose by; None: none.
        width: Numbers for each character in the model.
        depth: Blocks of the model.
        heads: Heads of attention, which divide the width.
    """

    name: ClassVar[str] = "text"
    data: Annotated[str, one_of(TEXTS)] = "sotu-small"
    context: Annotated[Whole, _SOME] = 32
    batch_size: Annotated[Whole, Field(ge=0)] = 16
    partition: Annotated[
        Partition, BeforeValidator(check_partition), FieldHint("a partition", use="BySpeaker()")
    ] = BySpeaker()
    client_weights: Annotated[str | None, BeforeValidator(check_weighting)] = None
    test_samples: Annotated[Whole | None, _SOME] = None
    validation: Validation = None
    width: Annotated[Whole, _SOME] = 32
    depth: Annotated[Whole, _SOME] = 2
    heads: Annotated[Whole, _SOME] = 2

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InvalidInput(
                f"heads must divide width={self.width}, got {self.heads}; use heads = 2."
            )

    def make(self, clients: int) -> Problem:
        """Load the texts and build the model."""
        return speeches(
            self.data,
            clients=clients,
            context=self.context,
            partition=self.partition,
            batch_size=self.batch_size or None,
            client_weights=self.client_weights or EQUAL,
            test_samples=self.test_samples,
            validation=self.validation,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
        )
