"""A method's step as a program: traced once by calling the step itself with symbolic tensors.

A step that is linear in the rows of its state does four things: it adds up rows with coefficients that
are one number per client, chooses between sums by a condition on the client, mixes, and takes one gradient.
`trace` records these and assigns memory; `kernels.run_program` runs the result. A step that does anything
else raises `NotLinear` here and is run as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from spodgt.algorithms.base import Algorithm
from spodgt.kernels.steps import State, rebuild
from spodgt.kernels.tracing import (
    ONE,
    Column,
    Node,
    NotLinear,
    Rows,
    Symbol,
    Terms,
    TracedRound,
    node_of,
)
from spodgt.types import Ints

LIN, MIX, DIFFERENCE = 0, 1, 2  # kinds of operations
WEIGHTS = ("a", "b", "w")  # what a mixing weighs with, by number


@dataclass(eq=False)
class Program:
    """What a round does, in numbers of registers: fields and kept rows first, then memory to work in.

    An operation is (kind, target, guard, mask, side, first, count). LIN: target ← Σ coefficient × register
    over terms[first : first + count], in the rows of clients with mask = side (mask -1: all). MIX: target ←
    register `first` mixed with WEIGHTS[count]. DIFFERENCE: the same, minus that register. An operation is
    skipped in runs where the mask `guard` is false for all clients.
    """

    fields: list[str]  # whole rows of the state, the first registers
    narrow: dict[str, Column]  # fields with one number per client, and what they become
    kept: int  # registers that last from round to round
    before: Ints = field(
        default_factory=lambda: np.zeros((0, 7), np.int64)
    )  # operations before the gradient
    after: Ints = field(default_factory=lambda: np.zeros((0, 7), np.int64))
    terms: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # register, coefficient
    working: int = 0  # registers of whole blocks to work in, before the gradient
    rows: int = 1  # registers of single rows to work in, after it; the first is the gradient
    at: int = 0  # the register that gradients are taken at
    coefficients: list[Column] = field(default_factory=list)
    masks: list[Column] = field(default_factory=lambda: [TracedRound.computes])
    mixed: list[tuple[int, bool]] = field(default_factory=list)


def trace(algorithm: Algorithm, state: State) -> Program:
    """The program of `algorithm.step` for states like this one; raises `NotLinear` where there is none.

    Numbers per client that `step` reads are asked for again in every round, so nothing of the round is fixed.
    """
    names, width = algorithm.traits.state, state[0].shape[1]
    leaves: dict[str, Node] = {}
    symbols: list[Symbol] = []
    for name, tensor in zip(names, state, strict=True):
        if tensor.shape[1] == width > 1:
            leaves[name] = Node("field")
            symbols.append(Rows({leaves[name]: ONE}))
        elif tensor.shape[1] == 1:
            symbols.append(Column("field", (name,)))
        else:
            raise NotLinear(name)
    round = TracedRound()
    try:
        after = algorithm.step(rebuild(state, symbols), round)  # type: ignore[arg-type]
    except TypeError as error:  # an operation between a symbol and something else
        raise NotLinear(str(error)) from error
    found = dict(zip(names, after, strict=True))
    if round.at is None or any(isinstance(found[name], Rows) != (name in leaves) for name in names):
        raise NotLinear("its state")
    narrow = {name: value for name, value in found.items() if name not in leaves}
    finals = {name: node_of(found[name]) for name in leaves}
    return _Assembler(leaves, finals, round, Program(list(leaves), narrow, len(leaves))).assemble()


def _sources(node: Node) -> Iterator[Node]:
    if node.source is not None:
        yield node.source
    if node.value is not None:
        yield from node.value.yes
        yield from node.value.no


class _Assembler:
    """Puts nodes in order and gives each a register."""

    def __init__(
        self, leaves: dict[str, Node], finals: dict[str, Node], round: TracedRound, program: Program
    ) -> None:
        assert round.at is not None
        self.round, self.program, self.finals = round, program, finals
        self.slots = {name: number for number, name in enumerate(leaves)}
        self.place = {
            node: self.slots[name] for name, node in leaves.items()
        }  # where a node lies now
        self.order: list[Node] = []
        for node in (round.at, *finals.values()):
            self._visit(node)
        self.late = {round.gradient}  # what depends on the gradient
        for node in self.order:
            if self.late.intersection(_sources(node)):
                self.late.add(node)
        if round.at in self.late:
            raise NotLinear("a gradient at a gradient")
        for node in [node for node in self.order if node in self.late]:
            self._hoist(node)
        self.terms: list[tuple[int, int]] = []

    def _hoist(self, node: Node) -> None:
        """Leave of a late sum only what the gradient adds; the rest is summed up while it is at hand."""
        rows, gradient = node.value, self.round.gradient
        if rows is None or rows.mask != self.round.computes or gradient not in rows.yes:
            return
        rest = {each: factor for each, factor in rows.yes.items() if each is not gradient}
        if self.late.intersection((*rest, *rows.no)) or not (rest or rows.no):
            return
        early = node_of(Rows(rest, rows.mask, rows.no) if rest != rows.no else Rows(rest))
        self._visit(early)
        node.value = Rows({early: ONE, gradient: rows.yes[gradient]}, rows.mask, {early: ONE})

    def _visit(self, node: Node) -> None:
        for source in _sources(node):
            self._visit(source)
        if node not in self.order and node.kind in ("mix", "difference", "sum"):
            self.order.append(node)

    def assemble(self) -> Program:
        program, round = self.program, self.round
        early = [node for node in self.order if node not in self.late]
        late = [node for node in self.order if node in self.late]
        if any(node.source is not None for node in late):
            raise NotLinear("gradients are mixed in their own round")
        homes = self._homes(late)
        guards = self._guards(early, homes)
        program.before = self._table(self._early(early, homes, guards))
        program.at = self.place[round.at]  # type: ignore[index]
        self.place[round.gradient] = program.kept
        program.after = self._table(self._late(late))
        program.terms = np.array(self.terms, np.int64).reshape(-1, 2)
        program.mixed = round.mixed
        return program

    def _homes(self, late: list[Node]) -> dict[Node, list[int]]:
        """The lasting registers of what is needed after the gradient."""
        finals = {self.slots[name]: node for name, node in self.finals.items()}
        homes: dict[Node, list[int]] = {}
        for slot, node in finals.items():
            if node not in self.late:
                homes.setdefault(node, []).append(slot)
        needed = [self.round.at, *(source for node in late for source in _sources(node))]
        open_slots = [slot for slot, node in finals.items() if node in self.late]
        crossing = [
            n
            for n in dict.fromkeys(needed)
            if n is not None and n not in self.late and n not in homes
        ]
        for node in [
            n for n in crossing if self.place.get(n) in open_slots
        ]:  # fields that stay where they are
            open_slots.remove(self.place[node])
            homes[node] = [self.place[node]]
        for node in [n for n in crossing if n not in homes]:
            if open_slots:  # best where it is only added to
                slot = next((s for s in open_slots if node in _sources(finals[s])), open_slots[-1])
                open_slots.remove(slot)
                homes[node] = [slot]
            else:
                homes[node] = [self.program.kept]
                self.program.kept += 1
        return homes

    def _guards(self, early: list[Node], homes: dict[Node, list[int]]) -> dict[Node, Column]:
        """Nodes that count only where a client exchanges, with that condition."""
        guards: dict[Node, Column] = {}
        for node in reversed(early):
            if node in homes:
                continue
            found: set[Column | None] = set()
            for user in self.order:
                rows, through = user.value, guards.get(user)
                if user.source is node or (rows and node in rows.no):
                    found.add(through)
                elif rows and node in rows.yes:
                    found.add(rows.mask if rows.mask and rows.mask.op == "every" else through)
            (one,) = found if len(found) == 1 else (None,)
            if one is not None:
                guards[node] = one
        return guards

    # --- operations ------------------------------------------------------------------------------
    def _early(
        self, early: list[Node], homes: dict[Node, list[int]], guards: dict[Node, Column]
    ) -> list[list[int]]:
        program, ops = self.program, []
        base = program.kept
        copied = [n for n, slots in homes.items() if n.kind == "field" and slots != [self.place[n]]]
        for number, node in enumerate(early):
            guard = self._mask(guards.get(node))
            later = {source for other in early[number + 1 :] for source in _sources(other)}
            later |= {
                *copied,
                *(n for n in homes if n.kind == "field" and self.place[n] in homes[n]),
            }
            mine = node.source
            home = next(
                (
                    slot
                    for slot in homes.get(node, ())
                    if all(self.place.get(n) != slot for n in (*later, *([mine] if mine else ())))
                ),
                None,
            )
            target = base + program.working if home is None else home
            program.working += home is None
            ops += self._operation(node, target, guard)
            self.place[node] = target
        for node in copied:  # its register may be written to by another
            ops.append(self._copy(self.place[node], base + program.working))
            self.place[node] = base + program.working
            program.working += 1
        for node, slots in homes.items():
            start = self.place[node]
            ops += [self._copy(start, slot) for slot in slots if slot != start]
            self.place[node] = slots[0]
        return ops

    def _late(self, late: list[Node]) -> list[list[int]]:
        """In an order in which nothing is overwritten that is still read; else by way of a row."""
        program, ops, moves = self.program, [], []
        goals = {
            node: [self.slots[name] for name, final in self.finals.items() if final is node]
            for node in late
        }
        waiting = list(late)
        while waiting:
            ready = [n for n in waiting if not set(_sources(n)) & set(waiting)]
            free = {}
            for node in ready:
                others = (s for n in waiting if n is not node for s in _sources(n))
                read = {self.place.get(source) for source in others}
                free[node] = next((slot for slot in goals[node] if slot not in read), None)
            node = next((n for n in ready if free[n] is not None), ready[0])
            waiting.remove(node)
            target = free[node]
            if target is None:
                target = program.kept + program.rows
                program.rows += 1
            ops += self._operation(node, target, -1)
            self.place[node] = target
            moves += [self._copy(target, slot) for slot in goals[node] if slot != target]
        return ops + moves

    def _operation(self, node: Node, target: int, guard: int) -> list[list[int]]:
        if node.source is not None:
            kind = MIX if node.kind == "mix" else DIFFERENCE
            return [[kind, target, guard, -1, 0, self.place[node.source], node.weights]]
        assert node.value is not None
        rows = node.value
        mask = self._mask(rows.mask)
        sides = [(rows.yes, 1)] if mask < 0 else [(rows.yes, 1), (rows.no, 0)]
        return [
            self._sum(terms, target, guard, mask, side)
            for terms, side in sides
            if not self._idle(terms, target)
        ]

    def _idle(self, terms: Terms, target: int) -> bool:
        """A row that becomes itself."""
        return [(self.place[n], factor) for n, factor in terms.items()] == [(target, ONE)]

    def _sum(self, terms: Terms, target: int, guard: int, mask: int, side: int) -> list[int]:
        pairs = [(self.place[node], self._coefficient(factor)) for node, factor in terms.items()]
        pairs.sort(
            key=lambda pair: pair[0] != target
        )  # what is overwritten is read in the first pass
        self.terms += pairs
        return [LIN, target, guard, mask, side, len(self.terms) - len(pairs), len(pairs)]

    def _copy(self, start: int, target: int) -> list[int]:
        self.terms.append((start, self._coefficient(ONE)))
        return [LIN, target, -1, -1, 0, len(self.terms) - 1, 1]

    def _coefficient(self, factor: Column) -> int:
        if factor not in self.program.coefficients:
            self.program.coefficients.append(factor)
        return self.program.coefficients.index(factor)

    def _mask(self, mask: Column | None) -> int:
        if mask is None:
            return -1
        if mask not in self.program.masks:
            self.program.masks.append(mask)
        return self.program.masks.index(mask)

    @staticmethod
    def _table(ops: list[list[int]]) -> Ints:
        return np.array(ops, np.int64).reshape(-1, 7)
