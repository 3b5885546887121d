"""Test the wheel in a folder as a new user would, without the repository.

    python tools/package.py dist

A new environment gets the wheel alone; what it depends on is borrowed from the environment that runs this, so
that nothing is downloaded. Then, outside the checkout: the version, the command line, a small comparison, and
a typed client under mypy.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from sysconfig import get_path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "tests/package/client.py"
IN_WHEEL = (
    "spodgt/py.typed",
    "spodgt/cli/starter/problem.py",
    "spodgt/report/assets/report.js",
)
IN_SDIST = (
    "tests/test_public.py",
    "docs/reference/methods.md",
    "examples/lora.py",
    "mkdocs.yml",
    "README.md",
    "LICENSE",
)


def main() -> None:
    dist = Path(sys.argv[1]).resolve()
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        packed = {name.split("/", 1)[-1] for name in archive.getnames()}
    for missing in [*({*IN_WHEEL} - names), *({*IN_SDIST} - packed)]:
        sys.exit(f"{missing} is not in the package")
    if strange := sorted({name.split("/")[0] for name in names if not name.startswith("spodgt")}):
        sys.exit(f"the wheel has {', '.join(strange)} besides spodgt")
    with tempfile.TemporaryDirectory() as folder:
        try_wheel(wheel, Path(folder))
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) installs and runs")


def try_wheel(wheel: Path, folder: Path) -> None:
    home = folder / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin/python"
    version = wheel.name.split("-")[1]
    run(folder, python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(
        get_path("purelib")
    )  # as a path alone: editable installs do not follow
    place = run(
        folder, python, "-c", "import spodgt; print(spodgt.__file__, spodgt.__version__)"
    ).split()
    if not Path(place[0]).is_relative_to(home) or place[1] != version:
        sys.exit(f"not the wheel of version {version} was tried: {' '.join(place)}")
    spodgt = home / "bin/spodgt"
    run(
        folder,
        spodgt,
        "compare",
        "--seeds",
        "1",
        "--rounds",
        "30",
        "--methods",
        "spod-gt",
        "--out",
        "first",
    )
    if not (folder / "first/report.html").exists():
        sys.exit("spodgt compare wrote no report")
    checked = folder / "client.py"
    checked.write_text(CLIENT.read_text(encoding="utf-8"), encoding="utf-8")
    run(folder, sys.executable, "-m", "mypy", "--strict", "--python-executable", python, checked)
    run(folder, python, checked)


def run(folder: Path, *command: object) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
