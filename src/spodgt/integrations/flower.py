"""A Flower ClientApp as the local worker of a site: no Flower server, no SuperLink.

    run_client_app(app, "peers/lima", model, rounds=100, config={"lr": 0.01})

Every round the app gets a train message with the present model and its reply is the model of the
site; one round is one block. The steps of the app's torch optimizer are corrected inside the app by
a global hook of torch, as in `spodgt.join`, so the limit is the same. An app that trains without an
optimizer of torch is refused: its displacement is no gradient, and tracking it has another limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from flwr.app import (
    DEFAULT_TTL,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from torch import nn
from typing_extensions import Unpack

from spodgt.errors import Failed, InvalidInput
from spodgt.integrations.site_callback import JoinOptions, find_scores
from spodgt.sites.api import join

ConfigValue: TypeAlias = bool | float | int | str
_SCORES = {
    "loss": ("eval_loss", "loss", "train_loss"),
    "accuracy": ("eval_acc", "eval_accuracy", "accuracy"),
}
_NODE = 1  # run and node of the messages: they do not leave the process


def run_client_app(
    app: ClientApp,
    folder: str | Path,
    model: nn.Module,
    *,
    rounds: int,
    config: Mapping[str, ConfigValue] | None = None,
    run_config: Mapping[str, ConfigValue] | None = None,
    node_config: Mapping[str, ConfigValue] | None = None,
    evaluate_every: int = 0,
    **options: Unpack[JoinOptions],
) -> None:
    """Train with a ClientApp as one site of a run.

    Args:
        app: With a function registered by `@app.train()`.
        folder: Of the site, made by `spodgt peer init --script` and `spodgt peer issue`.
        model: Of the same architecture as in the app; afterwards it holds the trained model.
        rounds: Number of train messages, each of them one block.
        config: Sent in every message as "config", with the number of the round as "server-round".
        run_config: Run configuration in the app's context.
        node_config: Node configuration in the app's context.
        evaluate_every: Rounds between two evaluate messages; 0: none.
        options: Those of `spodgt.join`.
    """
    if not rounds > 0:
        raise InvalidInput(f"rounds must be positive, got {rounds}; use rounds=100.")
    for key in ("block_steps", "block_seconds"):
        if key in options:
            raise InvalidInput(f"{key} has no use here: one round is one block; leave it out.")
    worker = _Worker(app, model, config or {}, run_config or {}, node_config or {})
    optimizer = torch.optim.SGD(worker.trained, lr=1.0)  # never steps; `join` requires one
    with join(folder, model, optimizer, **options) as site:
        for number in range(1, rounds + 1):
            with site.lend() as loan:
                reply = worker.send(MessageType.TRAIN, number)
            if loan.lent is None:
                raise Failed(
                    "the ClientApp has trained without a step of a torch optimizer, so its "
                    "gradients cannot be tracked; train with torch.optim, or use a Flower server."
                )
            worker.load(reply)
            scores = find_scores(_metrics(reply), _SCORES)
            if evaluate_every and number % evaluate_every == 0:
                evaluation = worker.send(MessageType.EVALUATE, number)
                scores |= find_scores(_metrics(evaluation), _SCORES)
            if scores:
                site.report(loss=scores.get("loss"), accuracy=scores.get("accuracy"))
            site.exchange()


class _Worker:
    """Sends messages to a ClientApp in this process."""

    def __init__(
        self,
        app: ClientApp,
        model: nn.Module,
        config: Mapping[str, ConfigValue],
        run_config: Mapping[str, ConfigValue],
        node_config: Mapping[str, ConfigValue],
    ) -> None:
        self.app = app
        self.model = model
        self.config = config
        self.context = Context(_NODE, _NODE, dict(node_config), RecordDict(), dict(run_config))

    @property
    def trained(self) -> list[nn.Parameter]:
        """Parameters with gradients."""
        return [each for each in self.model.parameters() if each.requires_grad]

    def send(self, message_type: str, number: int) -> Message:
        """The reply to a message with the present model."""
        content = RecordDict(
            {
                "arrays": ArrayRecord(torch_state_dict=self.model.state_dict()),
                "config": ConfigRecord({**self.config, "server-round": number}),
            }
        )
        reply = self.app(make_message(content, message_type), self.context)
        if reply.has_error():
            raise Failed(f"the ClientApp replied with an error: {reply.error.reason}.")
        return reply

    def load(self, reply: Message) -> None:
        """Continue with the model of a reply."""
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise Failed(
                f"the reply of the ClientApp holds {len(records)} ArrayRecords; reply with one, "
                "the state_dict of the model."
            )
        try:
            self.model.load_state_dict(records[0].to_torch_state_dict())
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise Failed(f"the reply of the ClientApp does not fit the model: {reason}") from None


def make_message(content: RecordDict, message_type: str) -> Message:
    """A message to an app in this process."""
    try:
        return Message(content=content, dst_node_id=_NODE, message_type=message_type)
    except RuntimeError:  # flwr 1.41: only processes that Flower started have an identity
        metadata = Metadata(
            run_id=_NODE,
            message_id="",
            src_node_id=_NODE,
            dst_node_id=_NODE,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=DEFAULT_TTL,
            message_type=message_type,
        )
        return Message(content=content, metadata=metadata)


def _metrics(reply: Message) -> dict[str, object]:
    """All metrics of a reply."""
    metrics: dict[str, object] = {}
    for record in reply.content.metric_records.values():
        assert isinstance(record, MetricRecord)
        metrics |= dict(record)
    return metrics
