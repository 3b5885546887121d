"""What instructions for loops are written with: LLVM's builder, and vectors in arrays."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from spodgt.compiled import Loop, text_of
from spodgt.compiled.shipped import Function

IR = Any  # types and values of llvmlite, which has no types itself
SPAN = 448  # bytes of sums that fit the registers of any processor with vectors of 32 bytes
FUSED = ("contract",)  # a product and a sum may be one instruction


class Code:
    """What instructions are written with: LLVM's builder, the arguments, and vectors in arrays of them."""

    def __init__(self, context: IR, builder: IR, signature: IR, arguments: IR, details: IR) -> None:
        from llvmlite import ir  # type: ignore[import-untyped]
        from numba.core import cgutils

        self.context, self.builder, self.ir, self.tools = context, builder, ir, cast(IR, cgutils)
        self.kinds, self.given, self.whole, self.details = signature.args, arguments, ir.IntType(64), details

    @property
    def wide(self) -> bool:
        """Whether the processor has vectors of 64 bytes, and so twice as many registers."""
        from llvmlite import binding
        from numba.core import config

        name: str | None = vars(config)["CPU_NAME"]
        features: dict[str, bool] = binding.get_host_cpu_features()
        return name == "x86-64-v4" if name else features.get("avx512f", False)

    def number(self, which: int) -> tuple[IR, int]:
        """The type of the numbers in an array, and their bytes."""
        kind = self.context.get_data_type(self.kinds[which].dtype)
        return kind, self.context.get_abi_sizeof(kind)

    def at(self, which: int, *index: IR, of: int | None = None) -> IR:
        """The address of a number in an array, or in one `of` a tuple; without index, of (array, *index)."""
        kind, array = self.kinds[which], self.given[which]
        if of is not None:
            kind, array = kind[of], self.builder.extract_value(array, of)
        if not index:
            array, *index = (self.builder.extract_value(array, n) for n in range(len(kind)))  # type: ignore[assignment]
            kind = kind[0]
        view = self.context.make_array(kind)(self.context, self.builder, array)
        return self.tools.get_item_pointer(self.context, self.builder, kind, view, list(index))

    def flags(self, which: int, of: int, begin: IR, end: IR) -> IR:
        """Bytes of an array in a tuple, zeros and ones, as bits: 32 from `begin` on, or up to `end`."""
        builder, ir, whole, word = self.builder, self.ir, self.whole, self.ir.IntType(32)
        assert self.kinds[which][of].layout == "C"  # side by side
        array = self.context.make_array(self.kinds[which][of])
        bytes_ = array(self.context, builder, builder.extract_value(self.given[which], of))
        room = builder.sub(builder.extract_value(bytes_.shape, 0), whole(32))  # beyond is nobody's memory
        place = builder.select(builder.icmp_signed("<", begin, room), begin, room)
        found = self.tools.alloca_once(builder, word)
        with builder.if_else(builder.icmp_signed(">=", place, whole(0))) as (all_at_once, one_by_one):
            with all_at_once:
                vector = ir.VectorType(ir.IntType(8), 32)
                pointer = builder.bitcast(self.at(which, place, of=of), vector.as_pointer())
                on = builder.trunc(builder.load(pointer, align=1), ir.VectorType(ir.IntType(1), 32))
                shift = builder.trunc(builder.sub(begin, place), word)
                builder.store(builder.lshr(builder.bitcast(on, word), shift), found)
            with one_by_one:  # a network of less than 32 links; from the end, which LLVM leaves as it is
                builder.store(word(0), found)
                with self.tools.for_range(builder, builder.sub(end, begin)) as loop:
                    place = builder.sub(builder.sub(end, loop.index), whole(1))
                    bit = builder.zext(builder.load(self.at(which, place, of=of)), word)
                    builder.store(builder.or_(builder.shl(builder.load(found), word(1)), bit), found)
        count = builder.sub(end, begin)
        low = builder.sub(builder.shl(whole(1), count), whole(1))
        low = builder.select(builder.icmp_signed("<", count, whole(32)), low, whole(-1))
        return builder.and_(builder.load(found), builder.trunc(low, word))

    @contextmanager
    def each_bit(self, bits: IR) -> Iterator[IR]:
        """For every bit that is set, from the lowest on: its place."""
        builder, word = self.builder, bits.type
        left = self.tools.alloca_once(builder, word)
        builder.store(bits, left)
        head, body, end = (builder.append_basic_block(name) for name in ("bits", "bit", "no_bit"))
        builder.branch(head)
        builder.position_at_end(head)
        now = builder.load(left)
        builder.cbranch(builder.icmp_unsigned("!=", now, word(0)), body, end)
        builder.position_at_end(body)
        builder.store(builder.and_(now, builder.sub(now, word(1))), left)
        yield builder.zext(builder.cttz(now, self.ir.IntType(1)(1)), self.whole)
        builder.branch(head)
        builder.position_at_end(end)

    def piece(self, vector: IR, which: int, *index: IR) -> IR:
        """The address of a vector that begins there."""
        return self.builder.bitcast(self.at(which, *index), vector.as_pointer())

    def all_of(self, vector: IR, value: IR) -> IR:
        """A vector of equal numbers."""
        start, first = self.ir.Constant(vector, self.ir.Undefined), self.ir.IntType(32)
        one = self.builder.insert_element(start, value, first(0))
        same = self.ir.Constant(self.ir.VectorType(first, vector.count), [0] * vector.count)
        return self.builder.shuffle_vector(one, one, same)

    def cast(self, value: IR, kind: IR) -> IR:
        """A float in another precision."""
        if value.type == kind:
            return value
        return getattr(self.builder, "fpext" if kind == self.ir.DoubleType() else "fptrunc")(value, kind)

    def sums(self, start: IR, count: int) -> list[IR]:
        """Registers that begin with `start`."""
        found = [self.tools.alloca_once(self.builder, start.type) for _ in range(count)]
        for each in found:
            self.builder.store(start, each)
        return found

    def pieces(self, number: IR, size: IR, most: int, least: int) -> Iterator[list[tuple[IR, IR]]]:
        """Vectors that cover `size` numbers, no more than `most` bytes hold: types, and where they begin.

        What the caller writes for each list is done for the sizes that it is for. The last vector has 64
        bytes or `least`, 32 or 64, and covers some numbers that the one before it has, too.
        """
        builder, whole, bytes_ = self.builder, self.whole, self.context.get_abi_sizeof(number)
        vector, short = (self.ir.VectorType(number, n // bytes_) for n in (64, least))
        units = builder.sdiv(builder.add(size, whole(short.count - 1)), whole(short.count))
        units = builder.select(builder.icmp_signed("<", size, whole(short.count)), whole(0), units)
        end = builder.append_basic_block("end")
        choice = builder.switch(units, end)
        for count in range(most // least + 1):
            choice.add_case(whole(count), block := builder.append_basic_block("size"))
            builder.position_at_end(block)
            if count:
                full, rest = divmod(count * least, 64)
                kinds = [vector] * full + [short] * (rest > 0)
                if full == 1 and not rest:  # perhaps less than one
                    kinds = [short] * (64 // least)
                starts = [whole(n * kinds[0].count) for n in range(len(kinds) - 1)]
                last = builder.sub(size, whole(kinds[-1].count))
                yield list(zip(kinds, [*starts, last], strict=True))
            else:
                with self.tools.for_range(builder, size) as loop:
                    yield [(self.ir.VectorType(number, 1), loop.index)]
            builder.branch(end)
        builder.position_at_end(end)

    def parts(self, pieces: list[tuple[IR, IR]], begin: IR) -> list[IR]:
        """The addresses of these vectors in what begins there."""
        there = ((kind, self.builder.gep(begin, [n])) for kind, n in pieces)
        return [self.builder.bitcast(pointer, kind.as_pointer()) for kind, pointer in there]

    def add_parts(self, totals: list[IR], pieces: list[tuple[IR, IR]], by: IR, begin: IR) -> None:
        """totals += by · what begins there, vector by vector."""
        align = self.context.get_abi_sizeof(by.type)
        every = {kind.count: self.all_of(kind, by) for kind, _ in pieces}
        for total, (kind, _), part in zip(totals, pieces, self.parts(pieces, begin), strict=True):
            self.add(total, every[kind.count], self.builder.load(part, align=align))

    def store_parts(self, totals: list[IR], pieces: list[tuple[IR, IR]], begin: IR, align: int) -> None:
        for total, part in zip(totals, self.parts(pieces, begin), strict=True):
            self.builder.store(self.builder.load(total), part, align=align)

    def numbers(self, which: int, pointer: IR, vector: IR, unit: IR) -> IR:
        """unit · a vector of what is there in an array, whole numbers or floats, as `vector` has them."""
        builder, kind, (given, narrow) = self.builder, self.kinds[which].dtype, self.number(which)
        source = self.ir.VectorType(given, vector.count).as_pointer()
        numbers = builder.load(builder.bitcast(pointer, source), align=narrow)
        bytes_ = self.context.get_abi_sizeof(vector.element)
        if hasattr(kind, "signed"):
            numbers = (builder.sitofp if kind.signed else builder.uitofp)(numbers, vector)
        elif narrow != bytes_:
            numbers = (builder.fpext if narrow < bytes_ else builder.fptrunc)(numbers, vector)
        return builder.fmul(self.all_of(vector, unit), numbers)

    def lane_sums(self, parts: list[IR]) -> IR:
        """The sums of the lanes of each vector, side by side; the order does not depend on the others."""
        builder, ir, groups, lanes = self.builder, self.ir, 1, parts[0].type.count

        def halves(parts: list[IR]) -> IR:
            """Of each group of lanes the sum of its halves, or its only one, in one vector."""
            index = [group * lanes + n for group in range(groups) for n in range(max(1, lanes // 2))]
            index += [n + groups * lanes for n in index] if len(parts) > 1 else []
            sides = []
            for shift in sorted({0, lanes // 2}):
                chosen = [ir.IntType(32)(n + shift) for n in index]
                mask = ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)
                sides.append(builder.shuffle_vector(parts[0], parts[-1], mask))
            return builder.fadd(*sides) if len(sides) > 1 else sides[0]

        while len(parts) > 1:
            parts = [halves(parts[n : n + 2]) for n in range(0, len(parts), 2)]
            groups, lanes = 2 * groups, max(1, lanes // 2)
        while lanes > 1:
            parts, lanes = [halves(parts)], lanes // 2
        return parts[0]

    def add(self, total: IR, one: IR, other: IR) -> None:
        """total += one · other."""
        term = self.builder.fmul(one, other, FUSED)
        self.builder.store(self.builder.fadd(self.builder.load(total), term, FUSED), total)


class Intrinsic(Loop):
    """What numba lowers by a function of this file, whose arguments it has; `details` are in its code."""

    def __init__(self, function: Function, *details: int, result: str = "none") -> None:
        super().__init__(function, frozenset())
        self.details, self.result = details, result

    def text(self) -> str:
        own = text_of(Code) + text_of(Intrinsic)
        return f"{own}{super().text()}{self.details}{self.result} {SPAN}"

    def build(self) -> Function:
        from numba.core import types
        from numba.extending import intrinsic

        def typed(context, *kinds):  # type: ignore[no-untyped-def]
            def lowered(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
                found = self.function(Code(context, builder, signature, arguments, self.details), *arguments)
                return context.get_dummy_value() if found is None else found

            if self.result in ("same", "array"):
                result = kinds[0] if self.result == "same" else types.Array(kinds[0].dtype, 1, "C")
            else:
                result = getattr(types, self.result)
            given = (types.int64 if isinstance(kind, types.Integer) else kind for kind in kinds)
            return result(*given), lowered

        vars(typed)["__signature__"] = inspect.signature(self.function)
        return cast(Function, intrinsic(typed))
