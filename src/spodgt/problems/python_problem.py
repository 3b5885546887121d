"""Problems that a function of the user builds: `[problem] kind = "python"` of a config.

The function is imported from a file `path/to/problem.py`, or from an importable module; the current
folder and the folder of the config file are searched first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from spodgt._util.deprecation import RenamedAttribute
from spodgt.code_references import describe_error, find_file, import_object, is_reference
from spodgt.errors import InvalidInput
from spodgt.problems.random_state import seeded
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
        if not is_reference(self.build):
            raise InvalidInput(
                f"problem.build={self.build!r} must be module:function or file.py:function; "
                "use problem.py:build."
            )

    def resolve_relative_to(self, folder: Path) -> PythonProblem:
        """The same recipe for a config in `folder`, with that folder if only it has the code."""
        is_resolved = self.folder is not None or find_file(self.build, Path()) is not None
        if is_resolved or find_file(self.build, folder) is None:
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
            reason = describe_error(error, self._code.file)
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
    def file(self) -> Path | None:
        """The source file of the function."""
        return self._code.file

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
        with seeded(0):
            found = import_object(self.build, self._key, self.folder)
        if not callable(found.value):
            members = vars(found.module).items()
            functions = [key for key, value in members if inspect.isfunction(value)]
            raise InvalidInput(
                f"{self._key} must name a function, but {found.file or where} has none of that "
                f"name; {choices(name, functions)}"
            )
        return _Code(found.value, found.file, found.digest)

    beside = RenamedAttribute("resolve_relative_to")  # deprecated, removed in the next release


@dataclass(frozen=True, eq=False)
class _Code:
    """The imported function."""

    function: Callable[..., object]
    file: Path | None
    digest: str  # of the source file


def python(build: str, /, **arguments: ConfigValue) -> PythonProblem:
    """A problem that a function builds, such as `python("problem.py:build", hidden=32)`.

    Unlike a problem that is made in a script, it can be written to a config, swept over, and built
    by every process.

    Args:
        build: "module:function" or "path/to/problem.py:function".
        arguments: Keyword arguments of the function: numbers, text, lists, tables.
    """
    return PythonProblem(build, {**arguments})
