"""Instructions that Python has no words for, for use in loops: atomic, ahead of time, in registers."""

from __future__ import annotations

import inspect
from typing import Any, cast

from spodgt.compiled import Loop
from spodgt.compiled.shipped import Function

_IR = Any  # types and values of llvmlite, which has no types itself
_FUSED = ("contract",)  # a product and a sum may be one instruction


class _Code:
    """What instructions are written with: LLVM's builder, the arguments, and vectors in arrays of them."""

    def __init__(self, context: _IR, builder: _IR, signature: _IR, arguments: _IR, details: _IR) -> None:
        from llvmlite import ir  # type: ignore[import-untyped]
        from numba.core import cgutils

        self.context, self.builder, self.ir, self.tools = context, builder, ir, cast(_IR, cgutils)
        self.kinds, self.given, self.whole, self.details = signature.args, arguments, ir.IntType(64), details

    @property
    def wide(self) -> bool:
        """Whether the processor has vectors of 64 bytes, and so twice as many registers."""
        from llvmlite import binding
        from numba.core import config

        name: str | None = vars(config)["CPU_NAME"]
        features: dict[str, bool] = binding.get_host_cpu_features()
        return name == "x86-64-v4" if name else features.get("avx512f", False)

    def number(self, which: int) -> tuple[_IR, int]:
        """The type of the numbers in an array, and their bytes."""
        kind = self.context.get_data_type(self.kinds[which].dtype)
        return kind, self.context.get_abi_sizeof(kind)

    def at(self, which: int, *index: _IR) -> _IR:
        """The address of a number in an array; without index, of an argument (array, *index)."""
        kind, array = self.kinds[which], self.given[which]
        if not index:
            array, *index = (self.builder.extract_value(array, n) for n in range(len(kind)))  # type: ignore[assignment]
            kind = kind[0]
        view = self.context.make_array(kind)(self.context, self.builder, array)
        return self.tools.get_item_pointer(self.context, self.builder, kind, view, list(index))

    def piece(self, vector: _IR, which: int, *index: _IR) -> _IR:
        """The address of a vector that begins there."""
        return self.builder.bitcast(self.at(which, *index), vector.as_pointer())

    def all_of(self, vector: _IR, value: _IR) -> _IR:
        """A vector of equal numbers."""
        start, first = self.ir.Constant(vector, self.ir.Undefined), self.ir.IntType(32)
        one = self.builder.insert_element(start, value, first(0))
        same = self.ir.Constant(self.ir.VectorType(first, vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(one, one, same)

    def sums(self, start: _IR, count: int) -> list[_IR]:
        """Registers that begin with `start`."""
        found = [self.tools.alloca_once(self.builder, start.type) for _ in range(count)]
        for each in found:
            self.builder.store(start, each)
        return found

    def add(self, total: _IR, one: _IR, other: _IR) -> None:
        """total += one · other."""
        term = self.builder.fmul(one, other, _FUSED)
        self.builder.store(self.builder.fadd(self.builder.load(total), term, _FUSED), total)


class _Intrinsic(Loop):
    """What numba lowers by a function of this file, whose arguments it has; `details` are in its code."""

    def __init__(self, function: Function, *details: int, result: str = "none") -> None:
        super().__init__(function, frozenset())
        self.details, self.result = details, result

    def text(self) -> str:
        own = inspect.getsource(_Code) + inspect.getsource(type(self))
        return f"{own}{super().text()}{self.details}{self.result}"

    def build(self) -> Function:
        from numba.core import types
        from numba.extending import intrinsic

        def typed(context, *kinds):  # type: ignore[no-untyped-def]
            def lowered(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
                found = self.function(_Code(context, builder, signature, arguments, self.details), *arguments)
                return context.get_dummy_value() if found is None else found

            array = self.result == "array"
            result = types.Array(kinds[0].dtype, 1, "C") if array else getattr(types, self.result)
            given = (types.int64 if isinstance(kind, types.Integer) else kind for kind in kinds)
            return result(*given), lowered

        vars(typed)["__signature__"] = inspect.signature(self.function)
        return cast(Function, intrinsic(typed))


def _swap(code, array, index, old, new):  # type: ignore[no-untyped-def]
    """array[index] ← new if it is `old`; returns what it was.

    Atomic, and an order for all that threads wrote before: what one sees after another is whole.
    """
    return code.builder.extract_value(code.builder.cmpxchg(code.at(0, index), old, new, "seq_cst"), 0)


def _fetch(code, array, index, _, same):  # type: ignore[no-untyped-def]
    """`fetch(array, index, 0, 0)`: bring it near, it will be read soon."""
    ir = code.ir
    address, number = ir.PointerType(ir.IntType(8)), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address, number, number, number])
    function = code.builder.module.declare_intrinsic("llvm.prefetch", (address,), kind)
    how = [number(0), number(2), number(1)]  # to be read, into the second-level cache, data
    code.builder.call(function, [code.builder.bitcast(code.at(0, index), address), *how])
    return same


def _room(code, like):  # type: ignore[no-untyped-def]
    """An array (ROOM,) of the numbers of `like`, on the stack of the loop that asks for it."""
    from numba.core import types

    (kind, size), (count,) = code.number(0), code.details
    data = code.tools.alloca_once(code.builder, kind, size=count)
    array = code.context.make_array(types.Array(code.kinds[0].dtype, 1, "C"))(code.context, code.builder)
    sizes = {"shape": (code.whole(count),), "strides": (code.whole(size),), "itemsize": code.whole(size)}
    code.context.populate_array(array, data=data, meminfo=None, **sizes)
    return array._getvalue()


def _weigh(code, start, own, to, x, rows, weights, count, left, size):  # type: ignore[no-untyped-def]
    """A piece of a row of weighted sums, at most as many bytes as the details say.

    to ← own · start + Σ weights[n] · x[rows[n], left …] over n < count in `size` columns, where `to` and
    `start` are (array, row, column). All sums stay in registers, which a loop over columns cannot be made to
    do, so every row is read in one pass. Columns that two vectors have are computed twice.
    """
    builder, whole, (number, bytes_) = code.builder, code.whole, code.number(3)
    lanes = 64 // bytes_

    def sums(vector: _IR, offsets: list[_IR]) -> None:
        def parts(begin: _IR) -> list[_IR]:
            return [builder.bitcast(builder.gep(begin, [n]), vector.as_pointer()) for n in offsets]

        by = code.all_of(vector, own)
        begun = [builder.fmul(by, builder.load(each, align=bytes_), _FUSED) for each in parts(code.at(0))]
        totals = [code.sums(each, 1)[0] for each in begun]
        with code.tools.for_range(builder, count) as loop:
            row = builder.load(code.at(4, loop.index))
            by = code.all_of(vector, builder.load(code.at(5, loop.index)))
            for total, each in zip(totals, parts(code.at(3, row, left)), strict=True):
                code.add(total, by, builder.load(each, align=bytes_))
        for total, each in zip(totals, parts(code.at(2)), strict=True):
            builder.store(builder.load(total), each, align=bytes_)

    last = builder.sub(size, whole(lanes))
    for most in range(1, code.details[0] // 64 + 1):
        over = builder.sub(size, whole(max(lanes, (most - 1) * lanes + 1)))  # from 0 on for so many vectors
        with builder.if_then(builder.icmp_unsigned("<", over, whole(1 if most == 1 else lanes))):
            sums(code.ir.VectorType(number, lanes), [*(whole(n * lanes) for n in range(most - 1)), last])
    few = builder.icmp_signed("<", size, whole(lanes))
    with builder.if_then(few), code.tools.for_range(builder, size) as loop:
        sums(code.ir.VectorType(number, 1), [loop.index])


def _widen(code, x, row, left, size, unit, to, at):  # type: ignore[no-untyped-def]
    """to[at, :size] ← unit · x[row, left : left + size], of whole numbers or floats.

    `size` is a multiple of the numbers of `to` in 64 bytes.
    """
    (number, bytes_), (given, narrow), builder = code.number(5), code.number(0), code.builder
    vector, kind = code.ir.VectorType(number, 64 // bytes_), code.kinds[0].dtype
    every, first, target = code.all_of(vector, unit), code.at(0, row, left), code.at(5, at, code.whole(0))
    steps = code.whole(0), size, code.whole(vector.count)
    with code.tools.for_range_slice(builder, *steps) as (place, _):
        source = code.ir.VectorType(given, vector.count).as_pointer()
        numbers = builder.load(builder.bitcast(builder.gep(first, [place]), source), align=narrow)
        if hasattr(kind, "signed"):
            numbers = (builder.sitofp if kind.signed else builder.uitofp)(numbers, vector)
        elif narrow != bytes_:
            numbers = (builder.fpext if narrow < bytes_ else builder.fptrunc)(numbers, vector)
        here = builder.bitcast(builder.gep(target, [place]), vector.as_pointer())
        builder.store(builder.fmul(every, numbers), here, align=bytes_)


def _dots(code, model, first, second, tile, rows, size, sums):  # type: ignore[no-untyped-def]
    """Eight inner products in one pass, or in two where registers are short.

    sums (8,) ← model[first : first + size] · tile[row, :size] for the four rows, then the same for `second`.
    `size` is a multiple of the numbers in 64 bytes. Products are added up in a fixed order, the same on every
    processor.
    """
    builder, ir, whole, (number, bytes_) = code.builder, code.ir, code.whole, code.number(0)
    lanes = 64 // bytes_
    span = lanes if code.wide else lanes // 2  # eight sums and what they are made from fit the registers

    def halves(parts: list[_IR], groups: int, lanes: int) -> _IR:
        """Of each group of lanes the sum of its halves, or its only one, in one vector."""
        index = [group * lanes + n for group in range(groups) for n in range(max(1, lanes // 2))]
        index += [n + groups * lanes for n in index] if len(parts) > 1 else []
        sides = []
        for shift in sorted({0, lanes // 2}):
            chosen = [ir.IntType(32)(n + shift) for n in index]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)
            sides.append(builder.shuffle_vector(parts[0], parts[-1], mask))
        return builder.fadd(*sides) if len(sides) > 1 else sides[0]

    given = [code.at(0, place) for place in (first, second)]
    given += [code.at(3, builder.extract_value(rows, n), whole(0)) for n in range(4)]
    piece, parts = ir.VectorType(number, span), []
    for begin in range(0, lanes, span):
        totals = code.sums(ir.Constant(piece, None), 8)
        with code.tools.for_range_slice(builder, whole(begin), size, whole(lanes)) as (place, _):
            there = (builder.bitcast(builder.gep(pointer, [place]), piece.as_pointer()) for pointer in given)
            pieces = [builder.load(pointer, align=bytes_) for pointer in there]
            for n, total in enumerate(totals):
                code.add(total, pieces[n // 4], pieces[2 + n % 4])
        parts.append([builder.load(total) for total in totals])
    # Of two passes, the sums of both are what the first halving of whole vectors would give.
    found = parts[0] if len(parts) == 1 else [builder.fadd(*both) for both in zip(*parts, strict=True)]
    groups, wide = 1, span
    while len(found) > 1:
        found = [halves(found[n : n + 2], groups, wide) for n in range(0, len(found), 2)]
        groups, wide = 2 * groups, max(1, wide // 2)
    while wide > 1:
        found, wide = [halves(found, groups, wide)], wide // 2
    builder.store(found[0], code.piece(found[0].type, 6, whole(0)), align=bytes_)


def _product(code, x, places, offsets, table, to, row, left):  # type: ignore[no-untyped-def]
    """A piece of eight rows of a product of matrices.

    to[n, left …] ← Σ x[places[n] + offsets[t]] · table[t, left …] over t, for the eight n from `row` on, as
    many numbers as the details say. One factor is gathered on the way, as in a convolution.
    """
    builder, (number, size) = code.builder, code.number(0)
    vector = code.ir.VectorType(number, code.details[0])
    rows = [builder.add(row, code.whole(n)) for n in range(8)]
    given = [code.at(0, builder.load(code.at(1, n))) for n in rows]
    totals = code.sums(code.ir.Constant(vector, None), 8)
    count = code.context.make_array(code.kinds[2])(code.context, builder, offsets).shape
    with code.tools.for_range(builder, builder.extract_value(count, 0)) as loop:
        factors = builder.load(code.piece(vector, 3, loop.index, left), align=size)
        offset = builder.load(code.at(2, loop.index))
        for pointer, total in zip(given, totals, strict=True):
            one = builder.load(builder.gep(pointer, [offset]))
            code.add(total, code.all_of(vector, one), factors)
    for n, total in zip(rows, totals, strict=True):
        builder.store(builder.load(total), code.piece(vector, 4, n, left), align=size)


SPAN = 448  # bytes of sums that fit the registers of any processor with vectors of 32 bytes
ROOM = 64  # numbers on the stack of a loop
LANES = 8  # columns of the smaller product
swap, fetch = _Intrinsic(_swap, result="int64"), _Intrinsic(_fetch, result="int64")
room = _Intrinsic(_room, ROOM, result="array")
widen, dots = _Intrinsic(_widen), _Intrinsic(_dots)
weigh = _Intrinsic(_weigh, SPAN)
product, wide_product = _Intrinsic(_product, LANES), _Intrinsic(_product, 2 * LANES)
