"""A method's step as a program: traced once by calling the step itself with symbolic tensors.

A step that is linear in the rows of its state has four operations: sums of rows with one coefficient
per client, selection between sums by a condition on the client, mixing, and one gradient. `trace`
records them and assigns registers; `kernels.run_program` runs the result. Any other step raises
`NotLinear` here and is run as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spodgt.algorithms.base import Algorithm
from spodgt.kernels.steps import State, rebuild
from spodgt.kernels.tracing import (
    ONE,
    Column,
    ExpressionNode,
    NotLinear,
    Symbol,
    SymbolicRows,
    Terms,
    TracedRound,
    to_node,
)
from spodgt.types import Array, Ints

SUM = 0  # kinds of operations
MIX = 1
DIFFERENCE = 2
MATRICES = ("a", "b", "w")  # weights of the mixing matrices, by number
NO_MASK = -1


class Operation(NamedTuple):
    """One operation on registers; it is skipped in runs where `guard` is false for all clients."""

    kind: int  # SUM, MIX or DIFFERENCE
    target: int  # register
    guard: int  # mask, or NO_MASK
    source: int = 0  # of MIX and DIFFERENCE: register
    matrix: int = 0  # of MIX and DIFFERENCE
    first: int = 0  # of SUM: target = Σ coefficient · register over terms[first:end]
    end: int = 0
    mask: int = NO_MASK  # of SUM: only clients with mask = side; NO_MASK: all
    side: int = 0


OPERATION = np.dtype([(name, np.int64) for name in Operation._fields])


def _table(operations: list[Operation]) -> Array:
    """(operations,) of type `OPERATION`."""
    return np.array(operations, OPERATION)


@dataclass(eq=False)
class Program:
    """The operations of a round.

    Registers are numbered: first `lasting` ones, the fields of the state and rows that are needed
    after the gradient; then working memory, either `blocks` before the gradient or `rows` after it.
    """

    fields: list[str]  # of the state that are whole rows, the first registers
    narrow: dict[str, Column]  # fields with one number per client, and their new values
    lasting: int
    blocks: int = 0  # registers with a block of columns of all clients
    rows: int = 1  # registers with the row of one client; the first is the gradient
    gradient_at: int = 0  # register of the models at which gradients are taken
    before: Array = field(default_factory=lambda: _table([]))  # operations before the gradient
    after: Array = field(default_factory=lambda: _table([]))  # and after it
    terms: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # register, coefficient
    coefficients: list[Column] = field(default_factory=list)
    masks: list[Column] = field(default_factory=lambda: [TracedRound.computes])
    mixed: list[tuple[int, bool]] = field(default_factory=list)  # see `TracedRound`


def trace(algorithm: Algorithm, state: State) -> Program:
    """The program of `algorithm.step` for states like this one.

    Numbers per client that `step` reads are evaluated again in every round.

    Raises:
        NotLinear: The step has operations that programs do not have.
    """
    names = algorithm.traits.state
    leaves: dict[str, ExpressionNode] = {}
    symbols: list[Symbol] = []
    width = state[0].shape[1]
    for name, tensor in zip(names, state, strict=True):
        if tensor.shape[1] == width > 1:
            leaves[name] = ExpressionNode("field")
            symbols.append(SymbolicRows({leaves[name]: ONE}))
        elif tensor.shape[1] == 1:
            symbols.append(Column("field", (name,)))
        else:
            raise NotLinear(name)
    round = TracedRound()
    try:
        after = algorithm.step(rebuild(state, symbols), round)  # type: ignore[arg-type]
    except TypeError as error:  # an operation between a symbol and something else
        raise NotLinear(str(error)) from error

    results: dict[str, ExpressionNode] = {}
    narrow: dict[str, Column] = {}
    for name, value in zip(names, after, strict=True):
        if isinstance(value, SymbolicRows) != (name in leaves):
            raise NotLinear("its state")
        if name in leaves:
            results[name] = to_node(value)
        else:
            narrow[name] = value
    if round.gradient_point is None:
        raise NotLinear("no gradient")
    program = Program(list(leaves), narrow, len(leaves), mixed=round.mixed)
    _Assembler(program, leaves, results, round).assemble()
    return program


class _Graph:
    """The nodes of a step in the order of computation, separated by the gradient.

    Args:
        round: The traced round.
        results: The nodes that become fields.
    """

    def __init__(self, round: TracedRound, results: Iterable[ExpressionNode]) -> None:
        assert round.gradient_point is not None
        self.gradient = round.gradient
        self.order: list[ExpressionNode] = []
        for node in (round.gradient_point, *results):
            self._visit(node)
        self.dependent = {round.gradient}  # nodes that depend on the gradient
        for node in self.order:
            if self.dependent.intersection(node.sources):
                self.dependent.add(node)
        if round.gradient_point in self.dependent:
            raise NotLinear("a gradient at a gradient")
        for node in self.after:
            if node.source is not None:
                raise NotLinear("gradients are mixed in their own round")
            self._hoist(node, round.computes)

    @property
    def before(self) -> list[ExpressionNode]:
        """Nodes that are computed before the gradient."""
        return [node for node in self.order if node not in self.dependent]

    @property
    def after(self) -> list[ExpressionNode]:
        """Nodes that are computed after the gradient."""
        return [node for node in self.order if node in self.dependent]

    def _visit(self, node: ExpressionNode) -> None:
        """Append a node after its sources."""
        for source in node.sources:
            self._visit(source)
        if node not in self.order and node.kind in ("mix", "difference", "sum"):
            self.order.append(node)

    def _hoist(self, node: ExpressionNode, computes: Column) -> None:
        """Compute the terms of a sum that do not depend on the gradient before it."""
        sums = node.value
        if sums is None or sums.mask != computes or self.gradient not in sums.if_true:
            return
        rest = dict(sums.if_true)
        coefficient = rest.pop(self.gradient)
        is_empty = not rest and not sums.if_false
        if is_empty or self.dependent.intersection((*rest, *sums.if_false)):
            return
        is_selection = rest != sums.if_false
        early = to_node(
            SymbolicRows(rest, sums.mask, sums.if_false) if is_selection else SymbolicRows(rest)
        )
        self._visit(early)
        node.value = SymbolicRows({early: ONE, self.gradient: coefficient}, sums.mask, {early: ONE})


class _Assembler:
    """Assigns registers to the nodes of a step and appends its operations to a program."""

    def __init__(
        self,
        program: Program,
        leaves: dict[str, ExpressionNode],
        results: dict[str, ExpressionNode],
        round: TracedRound,
    ) -> None:
        assert round.gradient_point is not None
        self.program = program
        self.gradient_point = round.gradient_point
        self.graph = _Graph(round, results.values())
        self.register: dict[ExpressionNode, int] = {}  # current register of each node
        self.result_registers: dict[int, ExpressionNode] = {}  # the node that each field becomes
        for number, name in enumerate(leaves):
            self.register[leaves[name]] = number
            self.result_registers[number] = results[name]
        self.emitter = _Emitter(program, self.register)

    def assemble(self) -> None:
        """Fill in the program."""
        homes = self._lasting_registers()
        before = self._operations_before(homes, self._guards(homes))
        self.program.before = _table(before)
        self.program.gradient_at = self.register[self.gradient_point]
        self.register[self.graph.gradient] = self.program.lasting
        self.program.after = _table(self._operations_after())
        self.program.terms = np.array(self.emitter.terms, np.int64).reshape(-1, 2)

    # --- registers -------------------------------------------------------------------------------
    def _lasting_registers(self) -> dict[ExpressionNode, list[int]]:
        """The registers of nodes that are results, or needed after the gradient."""
        homes: dict[ExpressionNode, list[int]] = {}
        open_registers = []  # of fields that are computed after the gradient
        for register, node in self.result_registers.items():
            if node in self.graph.dependent:
                open_registers.append(register)
            else:
                homes.setdefault(node, []).append(register)
        needed = [node for node in self._needed_after_gradient() if node not in homes]
        for node in needed:  # fields that remain where they are
            register = self.register.get(node, -1)
            if register in open_registers:
                open_registers.remove(register)
                homes[node] = [register]
        for node in needed:
            if node not in homes:
                homes[node] = [self._take_register(node, open_registers)]
        return homes

    def _needed_after_gradient(self) -> list[ExpressionNode]:
        """Nodes computed before the gradient that are read after it, without repetition."""
        needed = [self.gradient_point]
        for node in self.graph.after:
            needed += node.sources
        return [node for node in dict.fromkeys(needed) if node not in self.graph.dependent]

    def _take_register(self, node: ExpressionNode, open_registers: list[int]) -> int:
        """An open register, if possible of a result that depends on the node; or a new one."""
        if not open_registers:
            self.program.lasting += 1
            return self.program.lasting - 1
        register = open_registers[-1]
        for candidate in open_registers:
            if node in self.result_registers[candidate].sources:
                register = candidate
                break
        open_registers.remove(register)
        return register

    def _guards(self, homes: dict[ExpressionNode, list[int]]) -> dict[ExpressionNode, Column]:
        """Nodes that are used only in rounds with an exchange, and the condition of this."""
        guards: dict[ExpressionNode, Column] = {}
        for node in reversed(self.graph.before):
            if node in homes:
                continue
            conditions: set[Column | None] = set()
            for user in self.graph.order:
                if node in user.sources:
                    conditions.add(_condition_of_use(node, user, guards.get(user)))
            condition = conditions.pop() if len(conditions) == 1 else None
            if condition is not None:
                guards[node] = condition
        return guards

    # --- operations ------------------------------------------------------------------------------
    def _operations_before(
        self, homes: dict[ExpressionNode, list[int]], guards: dict[ExpressionNode, Column]
    ) -> list[Operation]:
        """Operations before the gradient, after which the nodes of `homes` are in their registers."""
        operations: list[Operation] = []
        fields = [node for node in homes if node.kind == "field"]
        moving = [node for node in fields if homes[node] != [self.register[node]]]
        staying = [node for node in fields if self.register[node] in homes[node]]
        nodes = self.graph.before
        for number, node in enumerate(nodes):
            still_read = {*moving, *staying}
            for later in nodes[number + 1 :]:
                still_read.update(later.sources)
            if node.source is not None:  # mixing cannot overwrite its source
                still_read.add(node.source)
            target = self._free_register(homes.get(node, []), still_read)
            if target is None:
                target = self.emitter.new_block()
            operations += self.emitter.compute(
                node, target, self.emitter.mask_number(guards.get(node))
            )
            self.register[node] = target
        for node in moving:  # another node may be written to its register
            block = self.emitter.new_block()
            operations.append(self.emitter.copy(self.register[node], block))
            self.register[node] = block
        for node, registers in homes.items():
            current = self.register[node]
            operations += [
                self.emitter.copy(current, home) for home in registers if home != current
            ]
            self.register[node] = registers[0]
        return operations

    def _operations_after(self) -> list[Operation]:
        """Operations after the gradient, in an order in which no register is overwritten too early.

        If there is none, a result is computed in a row of working memory and copied at the end.
        """
        operations: list[Operation] = []
        copies: list[Operation] = []
        waiting = self.graph.after
        while waiting:
            node, target = self._next_after(waiting)
            waiting.remove(node)
            if target is None:
                target = self.program.lasting + self.program.rows
                self.program.rows += 1
            operations += self.emitter.compute(node, target, NO_MASK)
            self.register[node] = target
            homes = self._result_registers_of(node)
            copies += [self.emitter.copy(target, home) for home in homes if home != target]
        return operations + copies

    def _next_after(self, waiting: list[ExpressionNode]) -> tuple[ExpressionNode, int | None]:
        """A node with computed sources, if possible with a free result register."""
        ready = [node for node in waiting if not set(node.sources) & set(waiting)]
        for node in ready:
            still_read: set[ExpressionNode] = set()
            for other in waiting:
                if other is not node:
                    still_read.update(other.sources)
            register = self._free_register(self._result_registers_of(node), still_read)
            if register is not None:
                return node, register
        return ready[0], None

    def _result_registers_of(self, node: ExpressionNode) -> list[int]:
        return [number for number, result in self.result_registers.items() if result is node]

    def _free_register(self, candidates: list[int], still_read: set[ExpressionNode]) -> int | None:
        """The first candidate that holds no node that is still read."""
        occupied = {self.register.get(node) for node in still_read}
        for register in candidates:
            if register not in occupied:
                return register
        return None


def _condition_of_use(
    node: ExpressionNode, user: ExpressionNode, user_guard: Column | None
) -> Column | None:
    """The condition on the round under which `user` reads the node."""
    sums = user.value
    if sums is None or node in sums.if_false:
        return user_guard
    if sums.mask is not None and sums.mask.op == "every":
        return sums.mask
    return user_guard


class _Emitter:
    """Creates operations, and numbers the blocks, coefficients and masks of a program."""

    def __init__(self, program: Program, register: dict[ExpressionNode, int]) -> None:
        self.program = program
        self.register = register
        self.terms: list[tuple[int, int]] = []

    def new_block(self) -> int:
        """The register of a new block."""
        self.program.blocks += 1
        return self.program.lasting + self.program.blocks - 1

    def compute(self, node: ExpressionNode, target: int, guard: int) -> list[Operation]:
        """The operations that compute a node."""
        if node.source is not None:
            kind = MIX if node.kind == "mix" else DIFFERENCE
            return [Operation(kind, target, guard, self.register[node.source], node.matrix)]
        assert node.value is not None
        sums = node.value
        mask = self.mask_number(sums.mask)
        operations = [self._sum(sums.if_true, target, guard, mask, 1)]
        if mask != NO_MASK:
            operations.append(self._sum(sums.if_false, target, guard, mask, 0))
        return [operation for operation in operations if operation is not None]

    def copy(self, source: int, target: int) -> Operation:
        """A copy of a register."""
        self.terms.append((source, _number(ONE, self.program.coefficients)))
        end = len(self.terms)
        return Operation(SUM, target, NO_MASK, first=end - 1, end=end)

    def mask_number(self, mask: Column | None) -> int:
        """The number of a mask in the program."""
        return NO_MASK if mask is None else _number(mask, self.program.masks)

    def _sum(self, terms: Terms, target: int, guard: int, mask: int, side: int) -> Operation | None:
        """A sum of registers; None if it is the target itself."""
        numbers = [(self.register[node], factor) for node, factor in terms.items()]
        if numbers == [(target, ONE)]:
            return None
        numbers.sort(key=lambda term: term[0] != target)  # the loop reads the target first
        first = len(self.terms)
        for register, factor in numbers:
            self.terms.append((register, _number(factor, self.program.coefficients)))
        return Operation(SUM, target, guard, first=first, end=len(self.terms), mask=mask, side=side)


def _number(column: Column, columns: list[Column]) -> int:
    """The index of a column in a list, to which it is appended if missing."""
    if column not in columns:
        columns.append(column)
    return columns.index(column)
