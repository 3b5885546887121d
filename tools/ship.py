"""Make the machine code that comes with the package: `python tools/ship.py` (Linux on x86-64, with gcc).

Small comparisons are run and the arguments of every loop written down; what numba compiles for these, for any
processor with AVX2 and for any with AVX-512, is linked to a library each. To be run when a loop has changed:
a test tells.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir  # type: ignore[import-untyped]

import spodgt
from spodgt.compiled import Loop
from spodgt.compiled.shipped import LEVELS, OFF, TABLE, laid_out, library_of

TRIPLE = "x86_64-unknown-linux-gnu"
METHODS = ["spod-gt", "spod-gt-memory", "ab-push-pull", "g-push-pull", "k-gt", "sporadic-k-gt", "relay"]
Called = list[tuple[str, str]]  # the name of a loop, and the types of its arguments as `laid_out` has them


def called() -> Called:
    """All loops that small comparisons call from Python, and with what."""
    found: set[tuple[str, str]] = set()
    plain = Loop.bound

    def listen(self: Loop, *arguments: object) -> Any:
        kinds = laid_out(arguments)[0]
        if "?" not in kinds:
            found.add((f"{self.function.__module__}.{self.function.__qualname__}", kinds))
        return plain(self, *arguments)

    Loop.bound = listen  # type: ignore[method-assign]
    small_runs()
    return sorted(found)


def small_runs() -> None:
    """What people begin with: linear models on bytes and on numbers, in both precisions."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 1, 4, 4), generator=draws, dtype=torch.uint8)
    labels = torch.randint(0, 3, (60,), generator=draws)
    network, participation = spodgt.Network.directed_geometric(6, seed=1), spodgt.Beta(0.5, 0.5)
    for dtype in (torch.float32, torch.float64):
        for inputs in (images, images.to(dtype) / 255):
            data = [(inputs[n::6], labels[n::6]) for n in range(6)]
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
            loss, test = torch.nn.MultiMarginLoss(), (inputs, labels)
            problem = spodgt.Learning(model, loss, data, test=test, batch_size=4)
            spodgt.compare(METHODS, problem, network, participation, rounds=20, seeds=range(2), dtype=dtype)


def entry(module: ir.Module, name: str, result: Any) -> str:
    """A function in `module` that reads the arguments of a numba function from memory; its name.

    The first slot of the memory takes the result; the others are eight bytes per argument.
    """
    descriptor = result.fndesc
    kind = result.target_context.call_conv.get_function_type(descriptor.restype, descriptor.argtypes)
    inner = ir.Function(module, kind, descriptor.llvm_func_name)
    word, pointer = ir.IntType(64), ir.IntType(64).as_pointer()
    outer = ir.Function(module, ir.FunctionType(ir.IntType(32), [pointer]), name)
    builder = ir.IRBuilder(outer.append_basic_block())
    (memory,) = outer.args
    given = [builder.bitcast(memory, kind.args[0]), builder.alloca(kind.args[1].pointee)]
    for number, each in enumerate(kind.args[2:], 1):
        slot = builder.gep(memory, [word(number)])
        given.append(builder.load(builder.bitcast(slot, each.as_pointer())))
    builder.ret(builder.call(inner, given))
    return name


def types_of(kinds: str) -> tuple[Any, ...]:
    """Numba's types of arguments, from what `laid_out` says of them."""
    from numba import from_dtype  # type: ignore[attr-defined]
    from numba.core import types

    levels: list[list[Any]] = [[]]
    for token in re.findall(r"[()]|[^(),]+", kinds):
        if token == "(":
            levels.append([])
        elif token == ")":
            inner = tuple(levels.pop())
            levels[-1].append(types.BaseTuple.from_types(inner))
        elif "[" in token:
            number, dimensions, layout = re.findall(r"\w\w(?=\[)|\d(?=\w\])|\w(?=\])", token)
            levels[-1].append(types.Array(from_dtype(np.dtype(number)), int(dimensions), layout))
        else:
            levels[-1].append(getattr(types, token))
    return tuple(levels[0])


def make(level: str, wanted: Called) -> None:
    """Write the library for a level of processors, and the table. Nothing of it is run here."""
    wrappers, texts = ir.Module("entries"), []
    table: dict[str, Any] = {}
    wrappers.triple = TRIPLE
    for number, (name, kinds) in enumerate(wanted):
        module, _, function = name.rpartition(".")
        loop, types = getattr(import_module(module), function), types_of(kinds)
        dispatcher: Any = loop.compiled()
        dispatcher.compile(types)
        result = dispatcher.overloads[types]
        symbol = entry(wrappers, f"spodgt_{number}", result)
        row = table.setdefault(name, {"source": loop.source(), "entries": {}})
        row["entries"][kinds] = [symbol, str(result.signature.return_type)]
        texts.append(result.library.get_llvm_str())
    target = binding.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=level, opt=3, reloc="pic", codemodel="default")
    module = binding.parse_assembly(str(wrappers))
    for text in texts:
        module.link_in(binding.parse_assembly(text))
    keep = {f"spodgt_{n}" for n in range(len(wanted))}
    for each in [*module.functions, *module.global_variables]:
        if not each.is_declaration and each.name not in keep:
            each.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "loops.o"
        code.write_bytes(machine.emit_object(module))
        how = ["-shared", "-nostartfiles", "-s", "-Wl,--build-id=none,-z,noexecstack,-z,defs"]
        subprocess.run(["gcc", *how, "-o", library_of(level), code, "-lm", "-lc"], check=True)
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    if sys.argv[1:]:  # numba reads for what processor it compiles when it is loaded
        make(sys.argv[1], json.load(sys.stdin))
        return
    wanted = json.dumps(called())
    for level in LEVELS.values():
        with tempfile.TemporaryDirectory() as folder:
            how = {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": folder, OFF: "1"}
            command = [sys.executable, __file__, level]
            subprocess.run(command, check=True, env=os.environ | how, input=wanted, text=True)
        print(f"{library_of(level).name}: {library_of(level).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
