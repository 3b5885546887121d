"""The distributed runtime as a user starts it: `torchrun`, processes that die, two hosts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

pytestmark = [pytest.mark.network, pytest.mark.slow]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PATIENCE = 300.0  # seconds
CONFIG = """
[run]
methods = ["spod-gt", "dsgd"]
seeds = 2
rounds = {rounds}
evaluations = 20
dtype = "float64"
[network]
kind = "random-geometric"
clients = 7
radius = 0.6
[participation]
kind = "bernoulli"
p = 1.0
p_hat = 0.7
[problem]
kind = "quadratic"
parameters = 20
noise = 0.1
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hosts") / "config.toml"
    path.write_text(CONFIG.format(rounds=500))
    return path


def start(*arguments: str, before: tuple[str, ...] = (), **settings: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, *TORCHRUN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"SPODGT_TIMEOUT": "60", "OMP_NUM_THREADS": "1"} | settings,
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str]) -> str:
    """What the job printed; one that takes too long is ended."""
    try:
        return job.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise


def local(processes: int, *arguments: str) -> tuple[str, ...]:
    return ("--standalone", f"--nproc-per-node={processes}", *arguments)


def workers(parent: int) -> dict[int, int]:
    """The processes that torchrun has started: rank → pid."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == parent:
                settings = (folder / "environ").read_bytes().split(b"\0")
                ranks = [int(s.removeprefix(b"RANK=")) for s in settings if s.startswith(b"RANK=")]
                found |= {rank: int(folder.name) for rank in ranks}
        except OSError:
            continue
    return found


def wait_for(path: Path, job: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.05)


def tables(folder: Path) -> list[pd.DataFrame]:
    return [pd.read_parquet(folder / f"{name}.parquet") for name in ("metrics", "participation")]


@pytest.fixture(scope="module")
def unbroken(config: Path) -> Path:
    """The same run, undisturbed."""
    out = config.parent / "unbroken"
    job = start(*local(3, "-m", "spodgt", "run", str(config), "--out", str(out)))
    assert "100%" in finish(job)
    return out


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_after_kill_9_a_restart_ends_with_the_identical_result(
    victim: int, config: Path, tmp_path: Path, unbroken: Path
) -> None:
    out = tmp_path / "killed"
    command = ("-m", "spodgt", "run", str(config), "--out", str(out), "--checkpoint-every", "0")
    job = start("--max-restarts=2", *local(3, *command))
    wait_for(out / "checkpoint.zip", job)
    os.kill(workers(job.pid)[victim], signal.SIGKILL)
    output = finish(job)
    assert job.returncode == 0, output
    assert f"rank {victim} was lost in round" in output
    for ours, theirs in zip(tables(out), tables(unbroken), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
def test_without_restarts_the_rank_and_the_round_are_named_and_the_exit_code_is_1(
    config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = ("-m", "spodgt", "run", str(config), "--out", str(out), "--checkpoint-every", "0")
    job = start(*local(3, *command))
    wait_for(out / "checkpoint.zip", job)
    os.kill(workers(job.pid)[2], signal.SIGKILL)
    output = finish(job)
    assert job.returncode == 1
    lines = [line for line in output.splitlines() if "was lost in round" in line]
    assert lines
    assert all("error: rank 2 was lost in round" in line for line in lines), lines


def test_a_process_that_hangs_is_named_after_the_time_limit(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("-m", "spodgt", "run", str(config), "--out", str(out), "--checkpoint-every", "0")
    job = start(*local(2, *command), SPODGT_TIMEOUT="5")
    wait_for(out / "checkpoint.zip", job)
    stopped = workers(job.pid)[1]
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(8)
    os.kill(stopped, signal.SIGCONT)
    output = finish(job)
    assert job.returncode == 1
    assert "rank 1 was lost in round" in output


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(rounds=10).replace("clients = 7", "clients = 2"))
    job = start(*local(3, "-m", "spodgt", "run", str(config), "--out", str(tmp_path / "run")))
    lines = [line for line in finish(job).splitlines() if line.startswith("spodgt:")]
    sentence = "3 processes are too many for 2 clients; use torchrun --nproc-per-node 2."
    assert lines == [f"spodgt: error: {sentence}"]


# --- two hosts ---------------------------------------------------------------------------------------
HOSTS = ("spodgt-a", "spodgt-b")


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two network namespaces joined by a cable: 10.77.0.1 and 10.77.0.2."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("two hosts need root and the command ip")
    lay = [f"netns add {host}" for host in HOSTS]
    lay += [f"link add veth-a netns {HOSTS[0]} type veth peer name veth-b netns {HOSTS[1]}"]
    for number, host in enumerate(HOSTS):
        device = f"veth-{'ab'[number]}"
        lay += [f"-n {host} address add 10.77.0.{number + 1}/24 dev {device}"]
        lay += [f"-n {host} link set {name} up" for name in (device, "lo")]
    try:
        for command in lay:
            done = subprocess.run(
                ["ip", *command.split()], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


@pytest.mark.usefixtures("hosts")
def test_two_hosts_end_with_the_same_result(config: Path, tmp_path: Path, unbroken: Path) -> None:
    """Two processes here, one there; the second host has no folder of the first."""
    jobs = []
    for number, (host, processes) in enumerate(zip(HOSTS, (2, 1), strict=True)):
        out = tmp_path / f"host{number}"
        rendezvous = ["--nnodes=2", "--rdzv-id=test", "--rdzv-backend=c10d"]
        rendezvous += ["--rdzv-endpoint=10.77.0.1:29400", f"--local-addr=10.77.0.{number + 1}"]
        # The name of this machine says nothing about its namespaces: say which one keeps the store.
        own = (f"--nproc-per-node={processes}", f"--rdzv-conf=is_host={int(number == 0)}")
        command = ("-m", "spodgt", "run", str(config), "--out", str(out))
        settings = {"GLOO_SOCKET_IFNAME": f"veth-{'ab'[number]}"}
        before = ("ip", "netns", "exec", host)
        jobs.append(start(*rendezvous, *own, *command, before=before, **settings))
    outputs = [finish(job) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], "\n".join(outputs)
    written = [number for number in (0, 1) if (tmp_path / f"host{number}").exists()]
    assert len(written) == 1  # where rank 0 was
    for ours, theirs in zip(tables(tmp_path / f"host{written[0]}"), tables(unbroken), strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
