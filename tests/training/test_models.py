"""Models come out: the user's module, state dicts and files give the accuracy that was reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import spodgt
from spodgt.errors import InvalidInput
from spodgt.record.models import read_model

NETWORK = spodgt.Network.ring(3)
DRAWS = torch.Generator().manual_seed(4)


def blobs(count: int) -> tuple[Tensor, Tensor]:
    targets = torch.randint(0, 3, (count,), generator=DRAWS)
    return torch.randn(count, 4, generator=DRAWS) + 2 * nn.functional.one_hot(targets, 4), targets


CLIENTS, TEST = [blobs(40) for _ in range(3)], blobs(200)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[spodgt.Result, Path]:
    problem = spodgt.Learning(net(), nn.CrossEntropyLoss(), CLIENTS, test=TEST, buffers="pull")
    out = tmp_path_factory.mktemp("models") / "run"
    methods: list[Any] = ["spod-gt", spodgt.method("k-gt", step_size=0.05)]
    found = spodgt.compare(
        methods, problem, NETWORK, spodgt.Bernoulli(0.7), rounds=30, seeds=[1, 5], out=out
    )
    return found, out


def accuracy(module: nn.Module) -> float:
    with torch.no_grad():
        return float((module.eval()(TEST[0]).argmax(-1) == TEST[1]).float().mean())


def loaded(tensors: dict[str, Tensor]) -> nn.Module:
    module = net()
    module.load_state_dict(tensors)
    return module


@pytest.mark.parametrize("method", ["spod-gt", "k-gt"])
@pytest.mark.parametrize("seed", [1, 5])
def test_models_give_the_reported_accuracy(done: Any, method: str, seed: int) -> None:
    result, out = done
    last = result.final().query("method == @method and seed == @seed").iloc[0]
    own = result.clients.query("method == @method and seed == @seed").set_index("client")[
        "accuracy"
    ]
    assert accuracy(result.model(method, seed)) == pytest.approx(last["accuracy_average"])
    assert accuracy(loaded(result.state_dict(method, seed))) == pytest.approx(
        last["accuracy_average"]
    )
    assert accuracy(
        loaded(load_file(out / f"models/{method}-seed{seed}.safetensors"))
    ) == pytest.approx(last["accuracy_average"])
    for client in range(3):
        assert accuracy(result.model(method, seed, client)) == pytest.approx(own[client])
        assert accuracy(loaded(read_model(out, method, seed, client))) == pytest.approx(own[client])
    assert own.mean() == pytest.approx(last["accuracy"])


def test_clients_say_what_they_hold(done: Any) -> None:
    result, _ = done
    table = result.clients
    assert len(table) == 2 * 2 * 3
    assert (table["samples"] == 40).all()
    counts = torch.bincount(CLIENTS[1][1], minlength=3)
    row = table.query("client == 1").iloc[0]["labels"]
    assert dict(part.split(": ") for part in row.split(", ")) == {
        str(n): str(int(c)) for n, c in enumerate(counts)
    }
    again = spodgt.Result.read(done[1]).clients
    assert again.equals(table)


def test_a_resumed_run_still_gives_its_models(tmp_path: Path) -> None:
    problem = spodgt.Learning(nn.Linear(4, 3), nn.CrossEntropyLoss(), CLIENTS, test=TEST)
    first = spodgt.train("spod-gt", problem, NETWORK, rounds=8, out=tmp_path / "run")
    again = spodgt.train("spod-gt", problem, NETWORK, rounds=8, out=tmp_path / "run", resume=True)
    for client in ("average", 2):
        for name, value in first.state_dict(client=client).items():
            assert torch.equal(again.state_dict(client=client)[name], value)


def test_what_is_not_there_is_one_sentence(
    done: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, out = done
    for call, sentence in (
        (result.model, "method=None is not one of this result; choose from spod-gt, k-gt."),
        (lambda: result.model("k-gt", 2), "seed=2 is not one of this result; choose from 1, 5."),
        (
            lambda: result.model("k-gt", 1, 3),
            'client=3 must be "average" or a number below 3; use "average".',
        ),
        (
            lambda: read_model(out, "k-gt", 1, 3),
            "client=3 must be below 3, the number of clients; use average.",
        ),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert str(caught.value) == sentence
    with pytest.raises(InvalidInput, match="has no such model"):
        read_model(out, "gossip", 1, None)
    monkeypatch.setattr("spodgt.training.checkpoint.MAX_MODEL_BYTES", 10)
    problem = spodgt.Learning(nn.Linear(4, 3), nn.CrossEntropyLoss(), CLIENTS, test=TEST)
    monkeypatch.setattr("spodgt.training.api.MAX_STATE_BYTES", 10)
    large = spodgt.train("spod-gt", problem, NETWORK, rounds=2, out=tmp_path / "large")
    assert accuracy(large.model()) == pytest.approx(large.final()["accuracy_average"].item())
    with pytest.raises(InvalidInput, match="client=1 is not there: clients' models of more than"):
        large.model(client=1)
    assert [path.name for path in (tmp_path / "large/models").iterdir()] == [
        "spod-gt-seed0.safetensors"
    ]
    quadratic = spodgt.train("spod-gt", spodgt.Quadratic.random(3, 2), NETWORK, rounds=2)
    with pytest.raises(InvalidInput, match=r"got Quadratic; use spodgt\.Learning"):
        quadratic.model()


# --- callbacks and loggers ------------------------------------------------------------------------------
def test_callbacks_get_the_rows_of_the_frame() -> None:
    rows: list[dict[str, Any]] = []
    result = spodgt.compare(
        ["spod-gt", "k-gt"],
        spodgt.Quadratic.random(3, 2),
        NETWORK,
        rounds=20,
        seeds=[0, 1],
        callbacks=[rows.append],
    )
    found = {(row["method"], row["seed"], row["round"]): row["loss"] for row in rows}
    frame = result.frame.set_index(["method", "seed", "round"])["loss"].to_dict()
    assert found == frame
    assert len(rows) == len(result.frame)


def test_a_progress_bar_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    problem = spodgt.Quadratic.random(3, 2)
    spodgt.train("spod-gt", problem, NETWORK, rounds=3)
    assert capsys.readouterr().err == "", "nobody watches"
    spodgt.train("spod-gt", problem, NETWORK, rounds=3, progress=True)
    assert "spod-gt" in capsys.readouterr().err
    with pytest.raises(
        InvalidInput, match="progress must be True, False or a function, got 5; use True"
    ):
        spodgt.train("spod-gt", problem, NETWORK, rounds=3, progress=5)  # type: ignore[arg-type]


def test_a_result_that_was_read_draws_and_has_no_modules(tmp_path: Path) -> None:
    network = spodgt.Network.random_geometric(4, radius=0.9, seed=0)
    problem = spodgt.Quadratic.random(4, 2)
    options: dict[str, Any] = {"rounds": 3, "out": tmp_path / "run", "seeds": [5]}
    kept = spodgt.train("spod-gt", problem, network, spodgt.Beta(), **options)
    result = spodgt.Result.read(tmp_path / "run")
    assert isinstance(result, spodgt.Result)
    pictures = [
        each.plot_network(tmp_path / f"{number}.svg").read_bytes()
        for number, each in enumerate((kept, result))
    ]
    circles = [picture.count(b"<path") for picture in pictures]
    assert circles[0] == circles[1] > 4
    assert result.plot(tmp_path / "loss.png").exists()
    with pytest.raises(InvalidInput, match="seed=0 is not one of this result; choose from 5"):
        result.plot_network(tmp_path / "x.png", seed=0)
    with pytest.raises(InvalidInput, match="use spodgt export FOLDER"):
        result.model()


def trained(logger: spodgt.loggers.Logger) -> spodgt.Result:
    problem = spodgt.Quadratic.random(3, 2)
    return spodgt.compare(["spod-gt"], problem, NETWORK, rounds=6, seeds=[0, 1], callbacks=[logger])


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'spodgt[wandb]'")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trained(spodgt.loggers.WandB("test", group="here", mode="offline", folder=tmp_path))
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert all(list(run.glob("run-*.wandb")) for run in runs)


def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="pip install 'spodgt[mlflow]'")
    uri = (tmp_path / "mlruns").as_uri()
    result = trained(spodgt.loggers.MLflow(uri, "test"))
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("test").experiment_id])
    assert {run.data.tags["seed"] for run in runs} == {"0", "1"}
    for run in runs:
        points = client.get_metric_history(run.info.run_id, "loss")
        frame = result.frame[result.frame["seed"] == int(run.data.tags["seed"])]
        assert [point.step for point in points] == frame["round"].tolist()
        assert [point.value for point in points] == pytest.approx(frame["loss"].tolist())
        assert run.info.status == "FINISHED"


@pytest.mark.parametrize("uri", ["file:mlruns", "sqlite:///mlflow.db", "nowhere://host"])
def test_where_mlflow_cannot_log_is_one_sentence(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="pip install 'spodgt[mlflow]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(InvalidInput, match=f"MLflow cannot log to {uri}: .*; give the address of"):
        spodgt.loggers.MLflow(uri)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InvalidInput, match=r"pip install 'spodgt\[wandb\]'"):
        spodgt.loggers.WandB()


def test_an_unknown_client_is_refused_with_the_nearest_name() -> None:
    clients = {name: (torch.ones(4, 2), torch.zeros(4).long()) for name in ("oslo", "lima")}
    problem = spodgt.Learning(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), clients)
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(2), rounds=2)
    with pytest.raises(InvalidInput, match="client='Olso' is not a client; did you mean 'oslo'"):
        result.model(client="Olso")
