"""Models that predict the next character of what people said, each speaker a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.problems.client_data import EQUAL, ClientData, ClientWeights
from spodgt.problems.data import BySpeaker, Dataset, Partition, Split, Texts, load_texts
from spodgt.problems.data.partitions import Indices
from spodgt.problems.data.texts import ALPHABET
from spodgt.problems.learning import Learning
from spodgt.problems.transformer import next_character, transformer
from spodgt.types import Better, Evaluation, Ints


@dataclass(frozen=True, eq=False)
class _Spoken:
    """A partition that takes the speakers of windows for their labels."""

    by: Partition
    speakers: Tensor  # (windows,)

    def split(self, targets: Tensor, clients: int, seed: int) -> list[Indices]:
        return self.by.split(self.speakers, clients, seed)


class Text(Learning):
    """Next-character prediction, with perplexity exp(loss) as its metric; made by `Text.of`."""

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
        """The problem of some clients; models start from an initialisation drawn per seed.

        Args:
            model: maps codes (windows, context) to scores (windows, context, characters).
            texts: as `spodgt.problems.data.load_texts` gives them.
            clients: how many clients.
            partition: who gets which windows, by their speakers.
            batch_size: windows in a mini-batch; None takes full gradients.
            client_weights: "equal" (default), "samples" or one number per client, as for `Learning`.
            test_samples: evaluate on so many windows, spread over all speakers; all if None.
            validation: a fraction of each client's windows to choose by, as for `Learning`.
        """
        tested = np.arange(len(texts.test))
        if isinstance(partition, BySpeaker):  # of the speakers that take part
            tested = np.flatnonzero(texts.testers < clients)
        count = len(tested) if test_samples is None else min(test_samples, len(tested))
        test = texts.test[torch.from_numpy(tested[np.arange(count) * len(tested) // count])]
        splits = [Split(part[:, :-1].contiguous(), part[:, 1:].long()) for part in (texts.train, test)]
        spoken = _Spoken(partition, torch.from_numpy(texts.speakers))
        problem = cls.partitioned(
            model, next_character, Dataset("texts", splits[0], splits[1], tuple(ALPHABET)), clients=clients,
            partition=spoken, batch_size=batch_size, client_weights=client_weights, init="fresh",
            validation=validation,
        )  # fmt: skip
        text = cast(Text, problem)
        text.names = texts.names
        return text

    @property
    def work(self) -> float:
        return super().work * self.samples.inputs.shape[1]  # every weight is used at every position

    def _measured(self) -> Mapping[str, Better]:
        return {"perplexity": "down"}

    def _evaluate_on(self, data: ClientData, x: Tensor, rows: Ints | None) -> Evaluation:
        loss = super()._evaluate_on(data, x, rows).loss
        return Evaluation(loss, {"perplexity": loss.exp()})


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
    """A character-level transformer on texts by speaker, each client one speaker.

    Args:
        data: "sotu-small" (default, inside the package), "sotu" or "shakespeare".
        clients: how many clients: the speakers who said most.
        context: how many characters the model sees at most.
        partition: who gets which windows; `BySpeaker()` by default, or a partition that takes speakers for
            labels, such as `IID()` or `LabelsPerClient(4)`.
        batch_size: windows in a mini-batch; None takes full gradients.
        client_weights: "equal" (default), "samples" or one number per client, as for `Learning`.
        test_samples: evaluate on so many windows, spread over all speakers; all by default.
        validation: a fraction of each client's windows to choose by, as for `Learning`; None by default.
        options: of the transformer: `width`, `depth`, `heads`.
    """
    texts = load_texts(data, context)
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
