"""The house: folder order is import order, and the engine knows no method."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import spodgt

SRC = Path(spodgt.__file__).parent
# From left to right, as data flows; a file imports only from its own room or from rooms to its left.
ORDER = [
    "_util",
    "errors",
    "types",
    "tensors",
    "engine",
    "thread_pool",
    "random_draws",
    "rng",
    "validation",
    "code_references",
    "network",
    "participation",
    "problems",
    "algorithms",
]
ORDER += [
    "kernels",
    "runtimes",
    "experiment",
    "record",
    "figures",
    "training",
    "theory",
    "report",
    "sweeps",
]
ORDER += ["peer", "sites", "integrations", "cli", "__main__", "__init__"]
SIDE_ROOMS = (
    "integrations",
    "sites",
    "peer",
    "theory",
    "sweeps",
    "report",
)  # the rest works without them
EXTRAS = {"spodgt.sweeps.executors.ray"}  # needs a package that may be missing
LOOPS = {  # import numba, which only those processes should load that call a loop
    "spodgt.random_draws",
    "spodgt.problems.gradients.linear_model",
    "spodgt.kernels.mixing",
    "spodgt.kernels.run_program",
    "spodgt.kernels.event_batches",
}
TABLES = {"spodgt.record.frames"}  # imports pandas, which is loaded with the first table
FILES = sorted(path for path in SRC.rglob("*.py") if not path.name.endswith("_pb2.py"))


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every first-party module that is imported, with its statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (node, alias.name) for alias in node.names if alias.name.split(".")[0] == "spodgt"
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "spodgt":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = (SRC.parent / whole.replace(".", "/")).with_suffix(".py").exists()
                is_folder = (SRC.parent / whole.replace(".", "/")).is_dir()
                yield node, whole if is_module or is_folder else str(node.module)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_file_imports_only_from_the_left(path: Path) -> None:
    here = ORDER.index(room(path))
    for node, module in imports(parse(path)):
        parts = module.split(".")
        assert len(parts) > 1 or room(path) in ("cli", "__init__"), (
            f"line {node.lineno}: spodgt itself"
        )
        if len(parts) > 1:
            assert ORDER.index(parts[1]) <= here, (
                f"line {node.lineno}: {room(path)} must not import {module}"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_no_import_hides_in_a_function(path: Path) -> None:
    """The command line is the exception: its commands load what they need."""
    if room(path) == "cli":
        return
    for function in functions(parse(path)):
        hidden = [
            module for _, module in imports(function) if module not in EXTRAS | LOOPS | TABLES
        ]
        assert not hidden, f"{function.name} imports {hidden}"


def test_numba_is_loaded_by_the_first_loop_and_not_before() -> None:
    code = (
        "import sys\nimport spodgt, spodgt.cli.compare, spodgt.training, spodgt.runtimes.events.world\n"
        "assert 'numba' not in sys.modules\nfrom spodgt import rng\nimport numpy as np\n"
        "rng.bernoulli(rng.key(0, 'links'), range(2), np.ones(2))\nassert 'numba' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PRIVATE = re.compile(r"torch\._C|torch\._ops|llvmlite|numba\.core")


def test_no_private_part_of_numba_or_torch_is_used() -> None:
    found = [path.name for path in FILES if PRIVATE.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_no_concrete_method_is_imported_outside_its_room() -> None:
    methods = {cls.__module__ for cls in spodgt.ALGORITHMS.values()}
    for path in FILES:
        if room(path) not in ("algorithms", "__init__"):
            found = [module for _, module in imports(parse(path)) if module in methods]
            assert not found, f"{path.relative_to(SRC)} imports {found}"


def test_a_report_reads_the_record_and_nothing_else() -> None:
    for path in (SRC / "report").rglob("*.py"):
        for _, module in imports(parse(path)):
            assert module.split(".")[1] in ("report", "record", "figures", "errors"), (
                f"{path.name}: {module}"
            )


# --- numbers that may only fall --------------------------------------------------------------------
def test_capabilities_are_declared_and_not_probed() -> None:
    """No getattr or hasattr with a literal name on a problem, a method or a world."""
    asked = re.compile(
        r"(getattr|hasattr)\((self\.)?_?(problem|method|algorithm|world|base)\w*, \""
    )
    found = [
        f"{path.relative_to(SRC)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if asked.search(line)
    ]
    assert not found


PUBLIC = {  # the doors that users come in by
    "sites/api.py:join",
    "training/api.py:train",
    "training/api.py:compare",
    "problems/learning.py:__init__",
    "problems/learning.py:partitioned",
}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_functions_are_short_and_take_few_arguments() -> None:
    long, wide = [], []
    for path in FILES:
        for function in functions(parse(path)):
            name = f"{path.relative_to(SRC)}:{function.name}"
            assert function.end_lineno is not None
            public = name in PUBLIC  # arguments and their docs
            if body_lines(function) >= 60 and room(path) != "kernels" and not public:
                long.append(name)
            arguments = function.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            method = bool(arguments.args) and arguments.args[0].arg in ("self", "cls")
            if count - method > 10 and not public:
                wide.append(f"{name} ({count - method})")
    assert not long
    assert not wide


def test_the_code_is_typed() -> None:
    counts: Counter[str] = Counter()
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Name) and node.id == "Any":
                counts[str(path.relative_to(SRC))] += 1
    uses = "\n".join(f"{count:4} {name}" for name, count in counts.most_common())
    assert counts.total() <= 150, (
        f"{counts.total()} uses of Any, at most 150; give new ones a type:\n{uses}"
    )


# --- the public surface --------------------------------------------------------------------------------
def test_public_names_have_types_and_load() -> None:
    stub = ast.parse((SRC / "__init__.pyi").read_text(encoding="utf-8"))
    typed = set()
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            typed |= {alias.asname or alias.name for alias in node.names}
    assert typed == set(spodgt.__all__)
    assert all(getattr(spodgt, name) is not None for name in spodgt.__all__)
    assert dir(spodgt) == sorted([*spodgt.__all__, "__version__"])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spodgt.nothing  # type: ignore[attr-defined]


def test_public_names_include_every_method_class() -> None:
    for method in spodgt.ALGORITHMS.values():
        assert getattr(spodgt, method.__name__) is method


SMALL = """
import spodgt
result = spodgt.compare(["spod-gt"], spodgt.Quadratic.random(3, 2), spodgt.Network.ring(3), rounds=3)
print(len(result.frame))
"""


@pytest.mark.parametrize(
    "gone",
    [SIDE_ROOMS, *(pytest.param([name], marks=pytest.mark.slow) for name in SIDE_ROOMS)],
    ids=" ".join,
)
def test_the_rest_works_without_a_side_room(gone: Sequence[str], tmp_path: Path) -> None:
    """Without all of them, and (slow) without each."""
    shutil.copytree(SRC, tmp_path / "spodgt", ignore=shutil.ignore_patterns(*gone, "*.nb?"))
    done = subprocess.run(
        [sys.executable, "-c", SMALL], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={
            "PYTHONPATH": str(tmp_path), "PATH": "", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path),
            "SPODGT_ENGINE": "plain",  # a copy has no compiled loops yet
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_nothing_is_set_at_import() -> None:
    """No environment variable, no garbage collector, no thread count."""
    code = (
        "import gc, os, torch\nstate = lambda: (dict(os.environ), gc.isenabled(), torch.get_num_threads())\n"
        "before = state()\nimport spodgt\nspodgt.compare\nassert before == state()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_needs_no_heavy_package() -> None:
    code = (
        "import sys\nsys.argv = ['spodgt', '--help']\nfrom spodgt.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numba', 'pandas', 'matplotlib', 'networkx', 'scipy', 'pyarrow', 'grpc'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
