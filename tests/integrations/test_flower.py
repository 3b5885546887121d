"""A Flower ClientApp as the worker of a site: exact limit, refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spodgt.errors import Failed, InvalidInput
from spodgt.peer.membership.run_folders import audit_folders
from tests.sites.fleet_of_threads import Point, Quadratics, make_run, run_sites

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from spodgt.integrations.flower import run_client_app

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("default")]

Train = Callable[[nn.Module, Any], None]


def client_app(train_model: Train) -> Any:
    """An app that makes its own model and optimizer for every message, as Flower's examples do."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: object) -> Message:
        model = Point(5)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_model(model, message.content["config"])
        metrics = MetricRecord({"train_loss": 0.5, "num-examples": 3})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


@pytest.mark.slow
def test_unchanged_app_reaches_the_minimiser_of_the_average(tmp_path: Path) -> None:
    problem = Quadratics(2)
    manifest = make_run(tmp_path / "run", Point(5), 2)
    errors = {}

    def train(number: int, name: str) -> None:
        def local_steps(model: nn.Module, config: Any) -> None:
            assert isinstance(model, Point)
            optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
            for _ in range(2 + 3 * number):
                optimizer.zero_grad()
                torch.autograd.backward(problem.loss(number, model.x))
                optimizer.step()

        model = Point(5)
        run_client_app(
            client_app(local_steps),
            tmp_path / "run" / name,
            model,
            rounds=250,
            config={"lr": 0.2},
            durability="process",
        )
        errors[name] = problem.error(model.x.detach())

    run_sites(manifest.names, train)
    assert max(errors.values()) < 1e-8
    audit = audit_folders([tmp_path / "run" / name for name in manifest.names])
    assert audit.passed(1e-12)


def run_alone(folder: Path, train_model: Train) -> None:
    make_run(folder / "run", Point(5), 2)
    run_client_app(
        client_app(train_model), folder / "run" / "p0", Point(5), rounds=2, linger_seconds=0.1
    )


def test_app_without_a_torch_optimizer_is_refused(tmp_path: Path) -> None:
    def by_hand(model: nn.Module, config: object) -> None:
        for parameter in model.parameters():
            parameter.data.add_(1.0)

    with pytest.raises(Failed, match="without a step of a torch optimizer"):
        run_alone(tmp_path, by_hand)


def test_app_that_trains_another_model_is_refused(tmp_path: Path) -> None:
    def other(model: nn.Module, config: object) -> None:
        stranger = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(stranger.parameters(), lr=0.1)
        torch.autograd.backward(stranger(torch.ones(2)).sum())
        optimizer.step()

    with pytest.raises(InvalidInput, match="holds no copy of parameter x"):
        run_alone(tmp_path, other)


def test_rounds_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="rounds must be positive, got 0"):
        run_client_app(ClientApp(), tmp_path, Point(5), rounds=0)


def test_length_of_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="block_steps has no use here"):
        run_client_app(ClientApp(), tmp_path, Point(5), rounds=1, block_steps=5)
