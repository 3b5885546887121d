"""Symbolic tensors: a step that is called with them is recorded as an expression.

`Rows` represents (clients, parameters), `Column` one number per client. They support sums, factors per
client, selection by a condition on the client, mixings and one gradient. Others raise `NotLinear`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torch import Tensor


class NotLinear(Exception):
    """The step uses an operation that a program does not have."""


# --- symbols -----------------------------------------------------------------------------------------
class Symbol:
    """Represents a tensor while a step is traced."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: object = None,
    ) -> Symbol:
        name = function.__name__.strip("_")
        if name == "where" and not kwargs:
            return where(*args)
        if name == "zeros_like":
            return Rows()
        if name not in _OPERATIONS or kwargs:
            raise NotLinear(name)
        return _OPERATIONS[name](lifted(args[0]), lifted(args[1]))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotLinear(name)

    def __add__(self, other: object) -> Symbol:
        return _add(self, lifted(other))

    def __radd__(self, other: object) -> Symbol:
        return _add(lifted(other), self)

    def __sub__(self, other: object) -> Symbol:
        return _subtract(self, lifted(other))

    def __rsub__(self, other: object) -> Symbol:
        return _subtract(lifted(other), self)

    def __mul__(self, other: object) -> Symbol:
        return _multiply(self, lifted(other))

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Symbol:
        return _divide(self, lifted(other))

    def __rtruediv__(self, other: object) -> Symbol:
        return _divide(lifted(other), self)

    def __neg__(self) -> Symbol:
        return _multiply(self, constant(-1.0))


@dataclass(frozen=True)
class Column(Symbol):
    """One number per client: an operation and what it is applied to."""

    op: str  # const, given, input, every, field, mix, where, +, -, *, /
    args: tuple[Any, ...]

    def any(self) -> bool:
        """A round in which some client exchanges; where none does, its operations are skipped."""
        if self.op == "every":
            return True
        raise NotLinear("any")


class Given:
    """Numbers of a method that differ between the clients of a batch."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


@dataclass(eq=False)
class Node:
    """Rows of all clients that lie in memory: a field, a mixing, the gradient or a sum."""

    kind: str
    source: Node | None = None  # of a mixing
    weights: int = 0  # its number in WEIGHTS
    value: Rows | None = None  # of a sum


Terms = dict[Node, Column]


@dataclass(eq=False)
class Rows(Symbol):
    """(clients, parameters) as a sum of nodes with coefficients; two sums where a condition chooses."""

    yes: Terms = field(default_factory=dict)
    mask: Column | None = None
    no: Terms = field(default_factory=dict)


ONE, ZERO = Column("const", (1.0,)), Column("const", (0.0,))


def constant(value: float) -> Column:
    return Column("const", (float(value),))


def lifted(value: object) -> Symbol:
    """A number, or one per client, as a symbol."""
    if isinstance(value, Symbol):
        return value
    if isinstance(value, int | float):
        return constant(value)
    if isinstance(value, Tensor) and value.numel() == 1:
        return constant(float(value))
    if isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1:
        return Column("given", (Given(value),))
    raise NotLinear(type(value).__name__)


def _calculate(op: str, one: Column, two: Column) -> Column:
    if (
        one.op == two.op == "const"
        and op != "/"
        and all(each.args[0].is_integer() for each in (one, two))
    ):
        a, b = (
            one.args[0],
            two.args[0],
        )  # others are rounded to the models' type before they are used
        return constant(a + b if op == "+" else a - b if op == "-" else a * b)
    if op == "*" and ONE in (one, two):
        return two if one == ONE else one
    if (op == "/" and two == ONE) or (op in "+-" and two == ZERO):
        return one
    if op == "+" and one == ZERO:
        return two
    return Column(op, (one, two))


def _scaled(rows: Rows, op: str, by: Column) -> Rows:
    def all_terms(terms: Terms) -> Terms:
        return {node: _calculate(op, factor, by) for node, factor in terms.items()}

    return Rows(all_terms(rows.yes), rows.mask, all_terms(rows.no))


def _joined(one: Terms, two: Terms) -> Terms:
    total = dict(one)
    for node, factor in two.items():
        total[node] = _calculate("+", total.get(node, ZERO), factor)
    return {node: factor for node, factor in total.items() if factor != ZERO}


def _add(one: Symbol, two: Symbol) -> Symbol:
    if isinstance(one, Column) and isinstance(two, Column):
        return _calculate("+", one, two)
    if not (isinstance(one, Rows) and isinstance(two, Rows)):
        raise NotLinear("a number added to rows")
    if one.mask is not None and two.mask is not None and one.mask != two.mask:
        two = Rows({node_of(two): ONE})
    no = _joined(*(rows.yes if rows.mask is None else rows.no for rows in (one, two)))
    mask = one.mask or two.mask
    return Rows(_joined(one.yes, two.yes), mask, no if mask else {})


def _subtract(one: Symbol, two: Symbol) -> Symbol:
    if isinstance(one, Column) and isinstance(two, Column):
        return _calculate("-", one, two)
    return _add(one, _multiply(two, constant(-1.0)))


def _multiply(one: Symbol, two: Symbol) -> Symbol:
    if isinstance(one, Column) and isinstance(two, Column):
        return _calculate("*", one, two)
    if isinstance(two, Rows):
        one, two = two, one
    if not (isinstance(one, Rows) and isinstance(two, Column)):
        raise NotLinear("rows times rows")
    return _scaled(one, "*", two)


def _divide(one: Symbol, two: Symbol) -> Symbol:
    if not isinstance(two, Column):
        raise NotLinear("divided by rows")
    return _calculate("/", one, two) if isinstance(one, Column) else _scaled(rows_of(one), "/", two)


def rows_of(symbol: object) -> Rows:
    if not isinstance(symbol, Rows):
        raise NotLinear("a column in the place of rows")
    return symbol


_OPERATIONS: dict[str, Callable[[Symbol, Symbol], Symbol]] = {
    "add": _add, "sub": _subtract, "mul": _multiply, "div": _divide, "truediv": _divide,
    "radd": _add, "rmul": _multiply, "true_divide": _divide,
    "rsub": lambda one, two: _subtract(two, one),
}  # fmt: skip


def where(mask: object, yes: object, no: object) -> Symbol:
    """`torch.where` with a condition on the client."""
    if not isinstance(mask, Column) or mask.op not in ("input", "every"):
        raise NotLinear("where")
    yes, no = lifted(yes), lifted(no)
    if isinstance(yes, Column) and isinstance(no, Column):
        return Column("where", (mask, yes, no))
    yes, no = (Rows() if each == ZERO else rows_of(each) for each in (yes, no))
    parts = [
        each if each.mask in (None, mask) else Rows({node_of(each): ONE}) for each in (yes, no)
    ]
    return Rows(parts[0].yes, mask, parts[1].no if parts[1].mask else parts[1].yes)


def node_of(rows: Rows) -> Node:
    """The rows in memory; from here on they are read from there."""
    if rows.mask is None and list(rows.yes.values()) == [ONE]:
        return next(iter(rows.yes))
    node = Node("sum", value=Rows(rows.yes, rows.mask, rows.no))
    rows.yes, rows.mask, rows.no = {node: ONE}, None, {}
    return node


# --- the round of a traced step ------------------------------------------------------------------
@dataclass(frozen=True)
class Remainder:
    divisor: int | Tensor

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        if other != 0:
            raise NotLinear("the number of the round")
        return Column(
            "every", (self.divisor if isinstance(self.divisor, int) else Given(self.divisor),)
        )

    __hash__ = None  # type: ignore[assignment]


class Moment(Symbol):
    """The number of the round; only `k % divisor == 0` can be traced."""

    def __mod__(self, divisor: int | Tensor) -> Remainder:
        return Remainder(divisor)


class TracedRound:
    """Records the calls of a step to its round."""

    k = Moment()
    computes = Column("input", ("computes",))
    reset_tracker = Column("input", ("reset_tracker",))
    p = Column("input", ("p",))
    step_weight = Column("input", ("step_weight",))

    def __init__(self) -> None:
        self.at: Node | None = None  # where gradients are taken
        self.gradient = Node("gradient")
        self.mixed: list[tuple[int, bool]] = []  # with which weights, and whether whole rows

    def grad(self, x: object) -> Rows:
        if self.at is not None:
            raise NotLinear("a second gradient")
        self.at = node_of(rows_of(x))
        return Rows({self.gradient: ONE}, self.computes)

    def pull(self, x: object) -> Symbol:
        return self._mix(0, x)

    def push(self, x: object) -> Symbol:
        return self._mix(1, x)

    def gossip(self, x: object) -> Symbol:
        return self._mix(2, x)

    def gossip_difference(self, x: object) -> Rows:
        self.mixed.append((2, True))
        return Rows({Node("difference", node_of(rows_of(x)), 2): ONE})

    def __getattr__(self, name: str) -> NoReturn:
        raise NotLinear(name)

    def _mix(self, weights: int, x: object) -> Symbol:
        self.mixed.append((weights, isinstance(x, Rows)))
        if isinstance(x, Column):
            return Column("mix", (weights, x))
        return Rows({Node("mix", node_of(rows_of(x)), weights): ONE})
