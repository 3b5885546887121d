"""Symbolic tensors: a step that is called with them is recorded as an expression graph.

`SymbolicRows` represents (clients, parameters), `Column` for one number per client. They support sums,
factors per client, selection by a condition on the client, mixing and one gradient; any other
operation raises `NotLinear`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torch import Tensor

PULL = 0  # mixing matrices, by number
PUSH = 1
GOSSIP = 2


class NotLinear(Exception):
    """The step uses an operation that programs do not have."""


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
            return SymbolicRows()
        if name not in _OPERATIONS or kwargs:
            raise NotLinear(name)
        return _OPERATIONS[name](to_symbol(args[0]), to_symbol(args[1]))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotLinear(name)

    def __add__(self, other: object) -> Symbol:
        return _add(self, to_symbol(other))

    def __radd__(self, other: object) -> Symbol:
        return _add(to_symbol(other), self)

    def __sub__(self, other: object) -> Symbol:
        return _subtract(self, to_symbol(other))

    def __rsub__(self, other: object) -> Symbol:
        return _subtract(to_symbol(other), self)

    def __mul__(self, other: object) -> Symbol:
        return _multiply(self, to_symbol(other))

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Symbol:
        return _divide(self, to_symbol(other))

    def __rtruediv__(self, other: object) -> Symbol:
        return _divide(to_symbol(other), self)

    def __neg__(self) -> Symbol:
        return _multiply(self, constant(-1.0))


@dataclass(frozen=True)
class Column(Symbol):
    """One number per client: an operation and its arguments.

    Operations: const (number), given (`ClientValues`), input (name of a member of the round), every
    (divisor of k), field (name), mix (matrix, column), where (mask, column, column), + - * / (columns).
    """

    op: str
    args: tuple[Any, ...]

    def any(self) -> bool:
        """For `exchanges(k, K).any()`; operations of rounds without an exchange are skipped."""
        if self.op == "every":
            return True
        raise NotLinear("any")


class ClientValues:
    """A hyperparameter with one number per client of a batch; equal if it is the same tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientValues) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


@dataclass(eq=False)
class ExpressionNode:
    """Rows of all clients in memory: a field, the gradient, or the result of an operation."""

    kind: str  # field, gradient, mix, difference, sum
    source: ExpressionNode | None = None  # of a mix or difference
    matrix: int = 0  # of a mix or difference
    value: SymbolicRows | None = None  # of a sum

    @property
    def sources(self) -> list[ExpressionNode]:
        """The nodes that it is computed from."""
        if self.source is not None:
            return [self.source]
        if self.value is not None:
            return [*self.value.if_true, *self.value.if_false]
        return []


Terms = dict[ExpressionNode, Column]  # a sum of nodes with coefficients


@dataclass(eq=False)
class SymbolicRows(Symbol):
    """(clients, parameters): the sum `if_true`; or one of two sums, selected by `mask`."""

    if_true: Terms = field(default_factory=dict)
    mask: Column | None = None
    if_false: Terms = field(default_factory=dict)

    @property
    def otherwise(self) -> Terms:
        """The sum for clients without the mask's condition."""
        return self.if_true if self.mask is None else self.if_false


def constant(value: float) -> Column:
    """The same number for all clients."""
    return Column("const", (float(value),))


ONE = constant(1.0)
ZERO = constant(0.0)


def to_symbol(value: object) -> Symbol:
    """A symbol for a number, or for one number per client."""
    if isinstance(value, Symbol):
        return value
    if isinstance(value, int | float):
        return constant(value)
    if isinstance(value, Tensor) and value.numel() == 1:
        return constant(float(value))
    if isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == 1:
        return Column("given", (ClientValues(value),))
    raise NotLinear(type(value).__name__)


def to_rows(symbol: object) -> SymbolicRows:
    """The symbol, if it represents rows."""
    if not isinstance(symbol, SymbolicRows):
        raise NotLinear("a column in the place of rows")
    return symbol


# --- arithmetic --------------------------------------------------------------------------------------
def _calculate(op: str, left: Column, right: Column) -> Column:
    """A column `left op right`, simplified where this changes no digit."""
    folded = _fold_integers(op, left, right)
    if folded is not None:
        return folded
    if op == "*" and left == ONE:
        return right
    if op in "*/" and right == ONE:
        return left
    if op in "+-" and right == ZERO:
        return left
    if op == "+" and left == ZERO:
        return right
    return Column(op, (left, right))


def _fold_integers(op: str, left: Column, right: Column) -> Column | None:
    """The result for two integer constants; others are rounded to the models' type before use."""
    if op == "/" or left.op != "const" or right.op != "const":
        return None
    a = left.args[0]
    b = right.args[0]
    if not a.is_integer() or not b.is_integer():
        return None
    if op == "+":
        return constant(a + b)
    if op == "-":
        return constant(a - b)
    return constant(a * b)


def _scale(rows: SymbolicRows, op: str, factor: Column) -> SymbolicRows:
    return SymbolicRows(
        _scale_terms(rows.if_true, op, factor), rows.mask, _scale_terms(rows.if_false, op, factor)
    )


def _scale_terms(terms: Terms, op: str, factor: Column) -> Terms:
    return {node: _calculate(op, coefficient, factor) for node, coefficient in terms.items()}


def _add_terms(left: Terms, right: Terms) -> Terms:
    total = dict(left)
    for node, coefficient in right.items():
        total[node] = _calculate("+", total.get(node, ZERO), coefficient)
    return {node: coefficient for node, coefficient in total.items() if coefficient != ZERO}


def _add(left: Symbol, right: Symbol) -> Symbol:
    if isinstance(left, Column) and isinstance(right, Column):
        return _calculate("+", left, right)
    if not (isinstance(left, SymbolicRows) and isinstance(right, SymbolicRows)):
        raise NotLinear("a number added to rows")
    if left.mask is not None and right.mask is not None and left.mask != right.mask:
        right = SymbolicRows({to_node(right): ONE})
    mask = left.mask or right.mask
    if_true = _add_terms(left.if_true, right.if_true)
    if mask is None:
        return SymbolicRows(if_true)
    return SymbolicRows(if_true, mask, _add_terms(left.otherwise, right.otherwise))


def _subtract(left: Symbol, right: Symbol) -> Symbol:
    if isinstance(left, Column) and isinstance(right, Column):
        return _calculate("-", left, right)
    return _add(left, _multiply(right, constant(-1.0)))


def _multiply(left: Symbol, right: Symbol) -> Symbol:
    if isinstance(left, Column) and isinstance(right, Column):
        return _calculate("*", left, right)
    if isinstance(right, SymbolicRows):
        left, right = right, left
    if not (isinstance(left, SymbolicRows) and isinstance(right, Column)):
        raise NotLinear("rows times rows")
    return _scale(left, "*", right)


def _divide(left: Symbol, right: Symbol) -> Symbol:
    if not isinstance(right, Column):
        raise NotLinear("divided by rows")
    if isinstance(left, Column):
        return _calculate("/", left, right)
    return _scale(to_rows(left), "/", right)


_OPERATIONS: dict[str, Callable[[Symbol, Symbol], Symbol]] = {
    "add": _add, "sub": _subtract, "mul": _multiply, "div": _divide, "truediv": _divide,
    "radd": _add, "rmul": _multiply, "true_divide": _divide,
    "rsub": lambda left, right: _subtract(right, left),
}  # fmt: skip


def where(mask: object, if_true: object, if_false: object) -> Symbol:
    """`torch.where` with a condition on the client."""
    if not isinstance(mask, Column) or mask.op not in ("input", "every"):
        raise NotLinear("where")
    true_symbol = to_symbol(if_true)
    false_symbol = to_symbol(if_false)
    if isinstance(true_symbol, Column) and isinstance(false_symbol, Column):
        return Column("where", (mask, true_symbol, false_symbol))
    true_rows = _unmasked(true_symbol, mask)
    false_rows = _unmasked(false_symbol, mask)
    return SymbolicRows(true_rows.if_true, mask, false_rows.otherwise)


def _unmasked(symbol: Symbol, mask: Column) -> SymbolicRows:
    """The rows of a symbol, stored in a node if they depend on another mask."""
    rows = SymbolicRows() if symbol == ZERO else to_rows(symbol)
    if rows.mask is None or rows.mask == mask:
        return rows
    return SymbolicRows({to_node(rows): ONE})


def to_node(rows: SymbolicRows) -> ExpressionNode:
    """The node of rows; those that are a sum become a node, from which they are read from now on."""
    if rows.mask is None and list(rows.if_true.values()) == [ONE]:
        return next(iter(rows.if_true))
    node = ExpressionNode("sum", value=SymbolicRows(rows.if_true, rows.mask, rows.if_false))
    rows.if_true = {node: ONE}
    rows.mask = None
    rows.if_false = {}
    return node


# --- the round of a traced step ----------------------------------------------------------------------
@dataclass(frozen=True)
class Remainder:
    """k % divisor, which can be compared with 0 only."""

    divisor: int | Tensor

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        if other != 0:
            raise NotLinear("the number of the round")
        if isinstance(self.divisor, int):
            return Column("every", (self.divisor,))
        return Column("every", (ClientValues(self.divisor),))

    __hash__ = None  # type: ignore[assignment]


class RoundNumber(Symbol):
    """The number k of the round; only `k % divisor == 0` can be traced."""

    def __mod__(self, divisor: int | Tensor) -> Remainder:
        return Remainder(divisor)


class TracedRound:
    """Records the calls of a step to its round."""

    k = RoundNumber()
    computes = Column("input", ("computes",))
    p = Column("input", ("p",))
    step_weight = Column("input", ("step_weight",))
    reset_tracker = Column("input", ("reset_tracker",))

    def __init__(self) -> None:
        self.gradient_point: ExpressionNode | None = None  # the models at which gradients are taken
        self.gradient = ExpressionNode("gradient")
        self.mixed: list[tuple[int, bool]] = []  # matrix, and whether rows or a column

    def grad(self, x: object) -> SymbolicRows:
        if self.gradient_point is not None:
            raise NotLinear("a second gradient")
        self.gradient_point = to_node(to_rows(x))
        return SymbolicRows({self.gradient: ONE}, self.computes)

    def pull(self, x: object) -> Symbol:
        return self._mix(PULL, x)

    def push(self, x: object) -> Symbol:
        return self._mix(PUSH, x)

    def gossip(self, x: object) -> Symbol:
        return self._mix(GOSSIP, x)

    def gossip_difference(self, x: object) -> SymbolicRows:
        self.mixed.append((GOSSIP, True))
        return SymbolicRows({ExpressionNode("difference", to_node(to_rows(x)), GOSSIP): ONE})

    def __getattr__(self, name: str) -> NoReturn:
        raise NotLinear(name)

    def _mix(self, matrix: int, x: object) -> Symbol:
        self.mixed.append((matrix, isinstance(x, SymbolicRows)))
        if isinstance(x, Column):
            return Column("mix", (matrix, x))
        return SymbolicRows({ExpressionNode("mix", to_node(to_rows(x)), matrix): ONE})
