"""A run for training scripts: the layout of the script's model, and the first manifest.

The layout is taken from the script itself: it is started once with `SPODGT_LAYOUT`, and
`spodgt.join` writes the layout of the model to that file and ends the process.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spodgt.algorithms import describe
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.peer.membership.manifest import SCRIPT, Client, Link, Manifest, Method
from spodgt.peer.membership.run_folders import clients_of, create_from
from spodgt.peer.options import Deployment, Table
from spodgt.sites.layout import RowLayout
from spodgt.sites.site import FOLDER_VARIABLE

LAYOUT_VARIABLE = "SPODGT_LAYOUT"  # file to which `spodgt.join` writes the layout, and ends
_REASON_LENGTH = 300  # characters of an error
METHOD = (
    "spod-gt-memory"  # with contributions that are means over blocks: see docs/explanation/join.md
)


def read_layout(script: Path, arguments: Sequence[str] = (), seconds: float = 600.0) -> RowLayout:
    """Run a training script up to its `spodgt.join` and return the layout of its model.

    What the script gives to `join` is checked.

    Raises:
        InvalidInput: the script fails, or ends before it joins.
    """
    if not script.is_file():
        raise InvalidInput(
            f"training script {script} does not exist; give a script that calls spodgt.join."
        )
    with tempfile.TemporaryDirectory(prefix="spodgt-layout-") as folder:
        target = Path(folder) / "layout.json"
        command = [sys.executable, str(script), *arguments]
        environment = {**os.environ, LAYOUT_VARIABLE: str(target), FOLDER_VARIABLE: folder}
        try:
            done = subprocess.run(
                command,
                env=environment,
                timeout=seconds,
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"{script} did not reach spodgt.join within {seconds:.0f} s; call it before the "
                "training."
            ) from None
        if not target.exists():
            if done.returncode == 0:
                raise InvalidInput(
                    f"{script} ended without calling spodgt.join; add spodgt.join or a "
                    "SpodgtCallback to it, see docs/howto/join.md."
                )
            errors = done.stderr.decode(errors="replace")
            raise InvalidInput(f"{script} did not reach spodgt.join: {find_error(errors)}.")
        return RowLayout.from_table(json.loads(target.read_text()))


def find_error(output: str) -> str:
    """The message of the last traceback in the output of a script, or else its last line.

    Lines with a carriage return are progress bars, and left out.
    """
    text = output.replace("\r\n", "\n")
    lines = [line for line in text.split("\n") if line.strip() and "\r" not in line]
    if not lines:
        return "it printed nothing"
    message = lines[-1].strip()
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    if starts:
        for line in lines[starts[-1] + 1 :]:
            if line and not line[0].isspace():
                message = line
                break
    message = message.removeprefix(f"{InvalidInput.__module__}.{InvalidInput.__name__}: ")
    return message[:_REASON_LENGTH].removesuffix(".")


def write_layout_and_exit(layout: RowLayout, target: Path) -> None:
    """Write the layout for `read_layout`, and end the script."""
    target.write_text(json.dumps(layout.to_table()))
    sys.exit(0)


def wire_options(experiment: Experiment) -> Table:
    """The layer of the method that changes messages: compress = "int8" sends 8 bits per number."""
    fields = describe(experiment.methods[0])
    return {key: fields[key] for key in ("compress",) if fields.get(key)}


def create_script_run(
    folder: Path,
    experiment: Experiment,
    layout: RowLayout,
    deployment: Deployment = Deployment(),  # noqa: B008
) -> Manifest:
    """Make the folder of a run for training scripts; returns its manifest.

    Args:
        folder: Must not hold a run yet.
        experiment: Its network, participation, first seed and layer `compress` are used.
        layout: Of the model that all sites train.
        deployment: Names, addresses and limits of the sites.
    """
    seed = experiment.run.seed_list[0]
    network, availability = experiment.draw_network(seed, deployment.names)
    names, addresses = clients_of(network, deployment)
    p = np.ones(network.clients)
    p_hat = np.ones(network.links)
    if deployment.limits_from_config:
        p = availability.p
        p_hat = availability.p_hat
    clients = []
    for place, name in enumerate(names):
        device: Table = {"kind": "bernoulli", "p": float(p[place])}
        clients.append(Client(name, addresses[place], place, place, device))
    links = []
    for receiver, sender, used in zip(network.receivers, network.senders, p_hat, strict=True):
        dial = "sender" if addresses[receiver] else "receiver"
        links.append(Link(names[sender], names[receiver], float(used), dial))
    manifest = Manifest(
        run=secrets.token_hex(8),
        clients=tuple(clients),
        links=tuple(links),
        layout=layout.hash,
        parameters=layout.columns,
        method=Method(METHOD, 1.0, wire_options(experiment)),
        problem={"kind": SCRIPT, "layout": layout.to_table()},
        seed=seed,
        weights=experiment.weights or "degree",
        divided_into=len(names),
        max_alone=deployment.max_alone,
    )
    return create_from(folder, manifest)
