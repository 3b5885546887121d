"""Next-character prediction on texts by speaker, one speaker per client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.problems.data import BySpeaker, Dataset, Partition, Split, Texts, load_texts
from spodgt.problems.data.client_weights import EQUAL, ClientWeights
from spodgt.problems.data.evaluation_data import EvaluationData, evenly_spread
from spodgt.problems.data.partitions import Indices
from spodgt.problems.data.text_corpora import ALPHABET
from spodgt.problems.evaluation import Evaluator
from spodgt.problems.learning import Learning
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.models.transformer import next_character, transformer
from spodgt.types import Better, Evaluation, Ints


@dataclass(frozen=True, eq=False)
class _SpeakerPartition:
    """A partition of windows with their speakers as labels."""

    partition: Partition
    speakers: Tensor  # (windows,)

    def split(self, targets: Tensor, clients: int, seed: int) -> list[Indices]:
        return self.partition.split(self.speakers, clients, seed)


@dataclass(frozen=True, eq=False)
class PerplexityEvaluator(Evaluator):
    """Evaluates perplexity, exp(loss)."""

    @property
    def directions(self) -> Mapping[str, Better]:
        return {"perplexity": "down"}

    def evaluate_on(
        self,
        model: TrainableModel,
        data: EvaluationData | None,
        max_samples: int | None,
        x: Tensor,
        clients: Ints | None,
    ) -> Evaluation:
        loss = super().evaluate_on(model, data, max_samples, x, clients).loss
        return Evaluation(loss, {"perplexity": loss.exp()})


class Text(Learning):
    """Next-character prediction, with perplexity as its metric; made by `Text.of`."""

    names: tuple[str, ...]  # of the speakers

    @classmethod
    def of(
        cls,
        model: nn.Module,
        texts: Texts,
        *,
        clients: int,
        partition: Partition = BySpeaker(),  # noqa: B008 (frozen)
        batch_size: int | None = 16,
        client_weights: ClientWeights = EQUAL,
        test_samples: int | None = None,
        validation: float | None = None,
    ) -> Text:
        """Divide texts among clients; initial models are drawn for every seed.

        Args:
            model: maps codes (windows, context) to scores (windows, context, characters).
            texts: such as `spodgt.problems.data.load_texts` returns.
            clients: number of clients.
            partition: divides the windows, with their speakers as labels; `BySpeaker()` by default.
            batch_size: windows in a mini-batch, 16 by default; None: full gradients.
            client_weights: "equal" (default), "samples" or one number per client, as for
                `Learning`.
            test_samples: windows in one evaluation at most, spread over all speakers; None
                (default): all.
            validation: a fraction of the windows of each client, as for `Learning`.
        """
        test = texts.test[_test_windows(texts, partition, clients, test_samples)]
        dataset = Dataset("texts", _to_split(texts.train), _to_split(test), tuple(ALPHABET))
        problem = cls.partitioned(
            model,
            next_character,
            dataset,
            clients=clients,
            partition=_SpeakerPartition(partition, torch.from_numpy(texts.speakers)),
            batch_size=batch_size,
            client_weights=client_weights,
            init="fresh",
            validation=validation,
        )
        text = cast(Text, problem)
        text.names = texts.names
        text.evaluator = PerplexityEvaluator()
        # every weight is used at every position of a window
        multiplications = text.model.multiplications * text.samples.inputs.shape[1]
        text.model = replace(text.model, multiplications=multiplications)
        return text


def _test_windows(
    texts: Texts, partition: Partition, clients: int, test_samples: int | None
) -> Tensor:
    """Indices of the windows to evaluate on, evenly spread over all of them."""
    windows = np.arange(len(texts.test))
    if isinstance(partition, BySpeaker):  # only those of speakers that are clients
        windows = np.flatnonzero(texts.test_speakers < clients)
    return torch.from_numpy(windows[evenly_spread(len(windows), test_samples)])


def _to_split(windows: Tensor) -> Split:
    """Windows (n, context + 1) as inputs (n, context) and the characters that follow."""
    return Split(windows[:, :-1].contiguous(), windows[:, 1:].long())


def speeches(
    data: str = "sotu-small",
    *,
    clients: int = 10,
    context: int = 32,
    partition: Partition | None = None,
    batch_size: int | None = 16,
    client_weights: ClientWeights = EQUAL,
    test_samples: int | None = None,
    validation: float | None = None,
    **options: int,
) -> Text:
    """A character-level transformer on texts by speaker, one speaker per client.

    Args:
        data: "sotu-small" (default, inside the package), "sotu" or "shakespeare".
        clients: number of clients, 10 by default: the speakers with the longest texts.
        context: characters that the model reads at most; 32 by default.
        partition: divides the windows; `BySpeaker()` by default, or a partition with speakers as
            labels, such as `IID()` or `LabelsPerClient(4)`.
        batch_size: windows in a mini-batch, 16 by default; None: full gradients.
        client_weights: "equal" (default), "samples" or one number per client, as for `Learning`.
        test_samples: windows in one evaluation at most, spread over all speakers; all by default.
        validation: a fraction of the windows of each client, as for `Learning`; None by default.
        options: of the transformer: `width`, `depth`, `heads`.
    """
    texts = load_texts(data, context)  # first: it refuses a context that is too long
    return Text.of(
        transformer(context, len(ALPHABET), **options),
        texts,
        clients=clients,
        partition=partition or BySpeaker(),
        batch_size=batch_size,
        client_weights=client_weights,
        test_samples=test_samples,
        validation=validation,
    )
