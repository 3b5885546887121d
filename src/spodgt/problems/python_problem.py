"""Problems that a function of the user builds: `[problem] kind = "python"` of a config.

The function is imported from a file `path/to/problem.py`, or from an importable module; the current
folder and the folder of the config file are searched first.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from spodgt._util.deprecation import warn_renamed
from spodgt.errors import InvalidInput, SpodgtError
from spodgt.problems.data.pytree import seeded
from spodgt.types import Problem
from spodgt.validation import FieldHint, choices, recipe

_PROVIDED = {  # parameters of the function that are not `arguments`
    "clients": "it is network.clients",
    "client": "it is the number of the peer",
}
ConfigValue = bool | int | float | str | Sequence["ConfigValue"] | Mapping[str, "ConfigValue"]
_CONFIG_TYPES = (bool, int, float, str)
_NAMED_PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _check_arguments(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"arguments must be a table, got {value!r}; write it as [problem.arguments]."
        )
    for name, argument in value.items():
        if name in _PROVIDED:
            raise ValueError(
                f"arguments.{name}={argument!r} cannot be set: {_PROVIDED[name]}; leave it out."
            )
        if not _fits_config(argument):
            raise ValueError(
                f"arguments.{name} must be something a config can hold (numbers, text, lists), "
                f"got {type(argument).__name__}; make it inside the function."
            )
    return dict(value)


def _fits_config(value: object) -> bool:
    """Whether a value can be written to a TOML file."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _fits_config(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_fits_config(item) for item in value)
    return isinstance(value, _CONFIG_TYPES)


@recipe(InvalidInput)
class PythonProblem:
    """A problem that a function builds, the same for every seed unless it has a partition.

    The function is called with `arguments`, with `clients=` the number of clients if it has a
    parameter of that name, and with `client=` if it has one: the name of the one client to load
    data for, which peers pass; None elsewhere. It returns a `Learning` or another problem. The
    random generators of torch, NumPy and Python are seeded before every call, so that all processes
    and peers build the same problem.

    Args:
        build: The function: "module:function" or "path/to/problem.py:function".
        arguments: Its keyword arguments: numbers, text, lists, tables.
        folder: Folder that is searched after the current one; set to the folder of the config file
            if the code is there.
    """

    name: ClassVar[str] = "python"
    build: Annotated[str, FieldHint("text in quotes", "problem.py:build")]
    arguments: Annotated[
        dict[str, object], BeforeValidator(_check_arguments), FieldHint("a table")
    ] = field(default_factory=dict)
    folder: str | None = None

    def __post_init__(self) -> None:
        where, colon, function = self.build.rpartition(":")
        if not (where and colon and function.isidentifier()):
            raise InvalidInput(
                f"problem.build={self.build!r} must be module:function or file.py:function; "
                "use problem.py:build."
            )

    def resolve_relative_to(self, folder: Path) -> PythonProblem:
        """The same recipe for a config in `folder`, with that folder if only it has the code."""
        is_resolved = self.folder is not None or self._find_file(Path()) is not None
        if is_resolved or self._find_file(folder) is None:
            return self
        return PythonProblem(self.build, self.arguments, folder.as_posix())

    def make(self, clients: int, client: str | None = None) -> Problem:
        """Call the function.

        Args:
            clients: Number of clients of the problem.
            client: The one client to load data for; the problem may then have this one alone.

        Raises:
            InvalidInput: if the function cannot be imported, fails, or returns something else.
        """
        parameters = self._check_parameters()
        arguments = dict(self.arguments)
        if "clients" in parameters:
            arguments["clients"] = clients
        if "client" in parameters:
            arguments["client"] = client
        try:
            with seeded(0):  # every process must build the same problem
                problem = self._code.function(**arguments)
        except Exception as error:  # the function may raise anything
            reason = _describe_error(error, self._code.file)
            raise InvalidInput(f"{self._key} failed: {reason}.") from error
        if not isinstance(problem, Problem):
            raise InvalidInput(
                f"{self._key} must return a spodgt.Learning, got {type(problem).__name__}; "
                "return one."
            )
        is_single_client = client is not None and problem.clients == 1
        if problem.clients != clients and not is_single_client:
            fix = "make `clients` clients"
            if "clients" not in parameters:
                fix = "give it a parameter clients"
            raise InvalidInput(
                f"{self._key} made {problem.clients} clients, but the network has {clients}; "
                f"{fix}, or use network.clients = {problem.clients}."
            )
        return problem

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the source file of the function."""
        return self._code.digest

    @property
    def _key(self) -> str:
        return f"problem.build={self.build!r}"

    def _check_parameters(self) -> set[str]:
        """Check `arguments` against the signature of the function; returns all its parameters."""
        signature = inspect.signature(self._code.function).parameters.values()
        named = {}
        accepts_any = False
        for parameter in signature:
            if parameter.kind in _NAMED_PARAMETERS:
                named[parameter.name] = parameter
            if parameter.kind == inspect.Parameter.VAR_KEYWORD:
                accepts_any = True
        expected = [name for name in named if name not in _PROVIDED]
        for name, value in self.arguments.items():
            if name not in expected and not accepts_any:
                raise InvalidInput(
                    f"problem.arguments.{name}={value!r} is not a parameter of {self.build}; "
                    f"{choices(name, expected)}"
                )
        for name in expected:
            is_required = named[name].default is inspect.Parameter.empty
            if is_required and name not in self.arguments:
                raise InvalidInput(
                    f"problem.arguments.{name} is missing, which {self.build} needs; "
                    f"add it to [problem.arguments]."
                )
        return set(named)

    @cached_property
    def _code(self) -> _Code:
        where, _, name = self.build.rpartition(":")
        file = self._find_file(Path())
        if file is None and self.folder is not None:
            file = self._find_file(Path(self.folder))
        module = self._import_module(where, file)
        source = Path(module.__file__) if module.__file__ else None
        function = getattr(module, name, None)
        if not callable(function):
            functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
            raise InvalidInput(
                f"{self._key} must name a function, but {source or where} has none of that name; "
                f"{choices(name, functions)}"
            )
        return _Code(function, source, _digest(module, source))

    def _import_module(self, where: str, file: Path | None) -> ModuleType:
        """Import a module by its file, or by its name."""
        is_file = where.endswith(".py")
        if is_file and file is None:
            raise InvalidInput(f"{self._key} does not exist; give the path of a Python file.")
        search_path = [str(Path.cwd())]
        if is_file and file is not None:
            search_path = [str(file.parent)]  # its imports are next to it, as for `python file.py`
        elif self.folder is not None:
            search_path.append(str(Path(self.folder).resolve()))
        sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
        try:
            with seeded(0):
                if is_file and file is not None:
                    return _import_file(file)
                return importlib.import_module(where)
        except (Exception, SystemExit) as error:  # the module may do anything
            reason = _describe_error(error, file)
            raise InvalidInput(f"{self._key} cannot be imported: {reason}.") from error

    def _find_file(self, folder: Path) -> Path | None:
        """The file in `folder` with the code, by the name in `build`; None if there is none."""
        where = self.build.rpartition(":")[0]
        if where.endswith(".py"):
            candidates = [Path(where).expanduser()]
        else:
            module = Path(*where.split("."))
            candidates = [module.with_suffix(".py"), module / "__init__.py"]
        for candidate in candidates:
            path = folder / candidate
            if path.is_file():
                return path.resolve()
        return None

    def beside(self, folder: Path) -> PythonProblem:
        """Deprecated: `resolve_relative_to`.

        Args:
            folder: Folder of the config file.
        """
        warn_renamed("PythonProblem.beside", "PythonProblem.resolve_relative_to")
        return self.resolve_relative_to(folder)


@dataclass(frozen=True, eq=False)
class _Code:
    """The imported function."""

    function: Callable[..., object]
    file: Path | None
    digest: str  # of the source file


_digests: dict[str, str] = {}  # by module, of its source when it was imported


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module; a changed file is imported again."""
    content = path.read_bytes()
    name = f"spodgt_problem_{hashlib.sha256(os.fsencode(path) + content).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up classes of the module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _digest(module: ModuleType, source: Path | None) -> str:
    """Digest of the source at the first call, which follows the import; "" without a source."""
    if module.__name__ not in _digests and source is not None and source.is_file():
        _digests[module.__name__] = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    return _digests.get(module.__name__, "")


def _describe_error(error: BaseException, file: Path | None) -> str:
    """An error of the user's code on one line, with its last line in `file`."""
    lines = str(error).strip().splitlines()
    text = lines[0].strip().rstrip(".") if lines else ""
    if not isinstance(error, SpodgtError):
        kind = type(error).__name__
        text = f"{kind}: {text}" if text else kind
    if file is None:
        return text
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve() == file.resolve():
            return f"{text} ({Path(frame.filename).name}, line {frame.lineno})"
    return text


def python(build: str, /, **arguments: ConfigValue) -> PythonProblem:
    """A problem that a function builds, such as `python("problem.py:build", hidden=32)`.

    Unlike a problem that is made in a script, it can be written to a config, swept over, and built
    by every process.

    Args:
        build: "module:function" or "path/to/problem.py:function".
        arguments: Keyword arguments of the function: numbers, text, lists, tables.
    """
    return PythonProblem(build, {**arguments})
