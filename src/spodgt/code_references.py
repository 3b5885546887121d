"""Objects in files and modules of the user, named "path/to/file.py:name" or "module:name".

The current folder is searched first, then the folder of the config file.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from spodgt.errors import InvalidInput, SpodgtError


@dataclass(frozen=True, eq=False)
class UserObject:
    """An imported object of the user.

    Args:
        value: the object.
        module: in which it was found.
        file: the source file of the module; None if it has none.
        digest: twelve hexadecimal digits of that file when it was imported; "" without a file.
    """

    value: object
    module: ModuleType
    file: Path | None
    digest: str


def is_reference(text: object) -> bool:
    """Whether a text has the form "file.py:name" or "module:name"."""
    if not isinstance(text, str):
        return False
    where, colon, name = text.rpartition(":")
    return bool(where and colon and name.isidentifier())


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A value of a config in which all texts are changed, also those inside of tables and lists."""
    if isinstance(value, Mapping):
        return {str(key): map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [map_texts(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def find_file(reference: str, *folders: Path) -> Path | None:
    """The file that a reference names, in the first folder that has it; None if there is none."""
    where = reference.rpartition(":")[0]
    if where.endswith(".py"):
        candidates = [Path(where).expanduser()]
    else:
        module = Path(*where.split("."))
        candidates = [module.with_suffix(".py"), module / "__init__.py"]
    for folder, candidate in itertools.product(folders, candidates):
        path = folder / candidate
        if path.is_file():
            return path.resolve()
    return None


def import_object(reference: str, key: str, folder: str | None = None) -> UserObject:
    """Import the object that a reference names; `value` is None if its module does not have it.

    Args:
        reference: "path/to/file.py:name" or "module:name".
        key: the option and its value, for errors, such as "problem.build='problem.py:build'".
        folder: searched after the current folder.

    Raises:
        InvalidInput: the file does not exist, or its code fails.
    """
    where, _, name = reference.rpartition(":")
    folders = [Path.cwd()]
    if folder is not None:
        folders.append(Path(folder).resolve())
    file = find_file(reference, *folders)
    if where.endswith(".py"):
        if file is None:
            searched = " or ".join(each.as_posix() for each in folders)
            raise InvalidInput(
                f"{key} does not exist in {searched}; give the path of a Python file."
            )
        folders = [file.parent]  # its imports are next to it, as for `python file.py`
    sys.path[:0] = [str(each) for each in folders if str(each) not in sys.path]
    try:
        module = _import_module(where, file)
    except (Exception, SystemExit) as error:  # the module may do anything
        raise InvalidInput(f"{key} cannot be imported: {describe_error(error, file)}.") from error
    source = Path(module.__file__) if module.__file__ else None
    return UserObject(getattr(module, name, None), module, source, _digest(module, source))


def _import_module(where: str, file: Path | None) -> ModuleType:
    """Import the file, or the module of this name if the reference does not name a file."""
    if file is not None and where.endswith(".py"):
        return _import_file(file)
    return importlib.import_module(where)


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


def describe_error(error: BaseException, file: Path | None) -> str:
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


def helper_files(file: Path) -> list[Path]:
    """Imported Python files in the folder of `file` and below it, without installed packages."""
    files = {file.resolve()}
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if not isinstance(source, str) or not source.endswith(".py"):
            continue
        path = Path(source).resolve()
        is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
        if path.is_relative_to(file.resolve().parent) and path.is_file() and not is_installed:
            files.add(path)
    return sorted(files)
