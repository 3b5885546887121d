"""A problem that a function of the user's makes: `[problem] kind = "python"` of a config.

Code is imported only from where the user points: the file `path/to/problem.py`, or an importable module,
for which the current folder and the folder of the config file are searched first.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from spodgt.errors import InvalidInput, SpodgtError
from spodgt.problems.trees import seeded
from spodgt.types import Problem
from spodgt.validation import Must, choices, recipe

_GIVEN = {"clients": "the network says how many", "client": "peers are asked for their own"}
_PLAIN = (bool, int, float, str)


def _arguments(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(f"arguments must be a table, got {value!r}; write it as [problem.arguments].")
    for name, each in value.items():
        if name in _GIVEN:
            raise ValueError(f"arguments.{name}={each!r} cannot be set: {_GIVEN[name]}; leave it out.")
        if not _is_plain(each):
            kind = type(each).__name__
            raise ValueError(
                f"arguments.{name} must be something a config can hold (numbers, text, lists), got {kind}; "
                "make it inside the function."
            )
    return dict(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, _PLAIN)


@recipe(InvalidInput)
class PythonProblem:
    """A problem that a function makes, the same for every seed unless it has a partition.

    The function is called with `arguments`, with `clients=` the number of clients if it has a parameter of
    that name, and with `client=` if it has one: the name of the one client to load data for, which peers
    give; None elsewhere. It returns a `Learning` or another problem. Random numbers of torch, numpy and
    Python begin from the same seed in every call, so that all processes and peers build the same problem.

    Args:
        build: Where it is: "module:function" or "path/to/problem.py:function".
        arguments: Its keyword arguments: numbers, text, lists, tables.
        folder: Where the file or the module is looked for after the current folder; set to the folder of the
            config file if it is there.
    """

    name: ClassVar[str] = "python"
    build: Annotated[str, Must("text in quotes", "problem.py:build")]
    arguments: Annotated[dict[str, object], BeforeValidator(_arguments), Must("a table")] = field(
        default_factory=dict
    )
    folder: str | None = None

    def __post_init__(self) -> None:
        where, colon, function = self.build.rpartition(":")
        if not (where and colon and function.isidentifier()):
            raise InvalidInput(
                f"problem.build={self.build!r} must be module:function or file.py:function; "
                "use problem.py:build."
            )

    def beside(self, folder: Path) -> PythonProblem:
        """The same recipe for a config in `folder`: it says so where the code is there and not here."""
        if self.folder is not None or self._file(Path()) or not self._file(folder):
            return self
        return PythonProblem(self.build, self.arguments, folder.as_posix())

    def make(self, clients: int, client: str | None = None) -> Problem:
        """Call the function.

        Args:
            clients: How many clients the problem must have.
            client: The one client whose data are needed; the problem may then have this one alone.
        """
        given = {"clients": clients, "client": client}
        known = self._parameters
        try:
            with seeded(0):  # every process builds the problem for itself and must get the same one
                made = self._code.function(
                    **self.arguments, **{key: given[key] for key in given if key in known}
                )
        except Exception as error:  # a user's function may raise anything
            raise InvalidInput(f"{self._named} failed: {_told(error, self._code.file)}.") from error
        if not isinstance(made, Problem):
            got = type(made).__name__
            raise InvalidInput(f"{self._named} must return a spodgt.Learning, got {got}; return one.")
        if made.clients != clients and not (client is not None and made.clients == 1):
            fix = "give it a parameter clients" if "clients" not in known else "make as many as clients says"
            raise InvalidInput(
                f"{self._named} made {made.clients} clients, but the network has {clients}; {fix}, "
                f"or use network.clients = {made.clients}."
            )
        return made

    @property
    def digest(self) -> str:
        """Twelve letters that tell the source file of the function from another."""
        return self._code.digest

    @property
    def _named(self) -> str:
        return f"problem.build={self.build!r}"

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters, after `arguments` were held against them."""
        every = inspect.signature(self._code.function).parameters
        known = {name: each for name, each in every.items() if each.kind in _BY_NAME}
        names = [name for name in known if name not in _GIVEN]
        if not any(each.kind == inspect.Parameter.VAR_KEYWORD for each in every.values()):
            for name, value in self.arguments.items():
                if name not in names:
                    raise InvalidInput(
                        f"problem.arguments.{name}={value!r} is not a parameter of {self.build}; "
                        f"{choices(name, names)}"
                    )
        for name in names:
            if known[name].default is inspect.Parameter.empty and name not in self.arguments:
                raise InvalidInput(
                    f"problem.arguments.{name} is missing, which {self.build} needs; "
                    f"add it to [problem.arguments]."
                )
        return known

    @cached_property
    def _code(self) -> _Code:
        where, _, name = self.build.rpartition(":")
        file = self._file(Path()) or (self._file(Path(self.folder)) if self.folder else None)
        if where.endswith(".py") and file is None:
            raise InvalidInput(f"{self._named} does not exist; give the path of a Python file.")
        homes = [str(Path.cwd()), *([str(Path(self.folder).resolve())] if self.folder else [])]
        if where.endswith(".py") and file is not None:
            homes = [str(file.parent)]  # what it imports lies beside it, as for `python problem.py`
        sys.path[:0] = [home for home in homes if home not in sys.path]
        try:
            with seeded(0):
                module = (
                    _from_file(file) if where.endswith(".py") and file else importlib.import_module(where)
                )
        except (Exception, SystemExit) as error:  # a user's module may do anything
            raise InvalidInput(f"{self._named} cannot be imported: {_told(error, file)}.") from error
        source = Path(module.__file__) if module.__file__ else None
        function = getattr(module, name, None)
        if not callable(function):
            has = [key for key, each in vars(module).items() if inspect.isfunction(each)]
            raise InvalidInput(
                f"{self._named} must name a function, but {source or where} has none of that name; "
                f"{choices(name, has)}"
            )
        return _Code(function, source, _digest(module, source))

    def _file(self, folder: Path) -> Path | None:
        """The file in `folder` that `build` means, as far as its name tells."""
        where = self.build.rpartition(":")[0]
        if where.endswith(".py"):
            names = [Path(where).expanduser()]
        else:
            module = Path(*where.split("."))
            names = [module.with_suffix(".py"), module / "__init__.py"]
        return next((path.resolve() for path in (folder / name for name in names) if path.is_file()), None)


@dataclass(frozen=True, eq=False)
class _Code:
    function: Callable[..., object]
    file: Path | None
    digest: str


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_digests: dict[str, str] = {}  # module → of its source when it was imported


def _from_file(path: Path) -> ModuleType:
    """The module in a file; read again when the file has changed."""
    text = path.read_bytes()
    name = f"spodgt_problem_{hashlib.sha256(os.fsencode(path) + text).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickles of its classes look
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _digest(module: ModuleType, source: Path | None) -> str:
    """Of the source as it was when the module was imported, the best that can be told later."""
    if module.__name__ not in _digests and source is not None and source.is_file():
        _digests[module.__name__] = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return _digests.get(module.__name__, "")


def _told(error: BaseException, file: Path | None) -> str:
    """What went wrong in the user's code, on one line, and where."""
    lines = str(error).strip().splitlines()
    text = " ".join(line.strip() for line in lines[:1]).rstrip(".")
    if not isinstance(error, SpodgtError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    own = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if file and Path(each.filename).resolve() == file.resolve()
    ]
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else text


def python(build: str, /, **arguments: object) -> PythonProblem:
    """A problem that a function makes, such as `python("problem.py:build", hidden=32)`.

    Unlike a problem that is made in the script, it can be written to a config, swept over, and built by
    every process for itself.

    Args:
        build: "module:function" or "path/to/problem.py:function".
        arguments: Keyword arguments of the function: numbers, text, lists, tables.
    """
    return PythonProblem(build, arguments)
