"""Instructions that Python has no words for, for use in loops: atomic, ahead of time, in registers."""

from __future__ import annotations

import math

from spodgt.compiled.code import FUSED, IR, SPAN, Intrinsic


def _swap(code, array, index, old, new):  # type: ignore[no-untyped-def]
    """array[index] ← new if it is `old`; returns what it was.

    Atomic, and an order for all that threads wrote before: what one sees after another is whole.
    """
    return code.builder.extract_value(code.builder.cmpxchg(code.at(0, index), old, new, "seq_cst"), 0)


def _look(code, array, index):  # type: ignore[no-untyped-def]
    """array[index] as it is now, whoever writes it; all that was written before it was told is there, too."""
    return code.builder.load_atomic(code.at(0, index), "acquire", 8)


def _tell(code, array, index, value):  # type: ignore[no-untyped-def]
    """array[index] ← value, for those who `look`."""
    code.builder.store_atomic(value, code.at(0, index), "release", 8)


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
    """A piece of a row of weighted sums, at most SPAN bytes.

    to ← own · start + Σ weights[n] · x[rows[n], left …] over n < count in `size` columns, where `to` and
    `start` are (array, row, column). All sums stay in registers, which a loop over columns cannot be made to
    do, so every row is read in one pass. Columns that two vectors have are computed twice.
    """
    builder, (number, bytes_) = code.builder, code.number(3)
    for pieces in code.pieces(number, size, SPAN, code.details[0]):
        first, totals = code.parts(pieces, code.at(0)), []
        for (kind, _), part in zip(pieces, first, strict=True):
            begun = builder.fmul(code.all_of(kind, own), builder.load(part, align=bytes_), FUSED)
            totals += code.sums(begun, 1)
        with code.tools.for_range(builder, count) as loop:
            row, by = (builder.load(code.at(which, loop.index)) for which in (4, 5))
            code.add_parts(totals, pieces, by, code.at(3, row, left))
        code.store_parts(totals, pieces, code.at(2), bytes_)


def _stream(code, source, to, first):  # type: ignore[no-untyped-def]
    """to[first : …] ← source, past the caches: lines are not fetched before they are written."""
    builder, whole, (number, bytes_) = code.builder, code.whole, code.number(0)
    size, line = 64 if code.wide else 32, 64 // bytes_
    vector = code.ir.VectorType(number, size // bytes_)
    array = code.context.make_array(code.kinds[0])(code.context, builder, source)
    count, begin, target = builder.extract_value(array.shape, 0), code.at(0, whole(0)), code.at(1, first)
    past = builder.module.add_metadata([code.ir.IntType(32)(1)])
    odd = builder.and_(builder.neg(builder.ptrtoint(target, whole)), whole(63))  # bytes up to the first line
    head = builder.udiv(odd, whole(bytes_))
    head = builder.select(builder.icmp_signed("<", head, count), head, count)
    end = builder.add(head, builder.and_(builder.sub(count, head), whole(-line)))
    for low, high in ((whole(0), head), (end, count)):
        with code.tools.for_range_slice(builder, low, high, whole(1)) as (place, _):
            builder.store(builder.load(builder.gep(begin, [place])), builder.gep(target, [place]))
    with code.tools.for_range_slice(builder, head, end, whole(line)) as (place, _):
        for part in (builder.add(place, whole(n)) for n in range(0, line, vector.count)):
            there = (builder.bitcast(builder.gep(at, [part]), vector.as_pointer()) for at in (begin, target))
            given, to_there = there
            stored = builder.store(builder.load(given, align=bytes_), to_there, align=size)
            stored.set_metadata("nontemporal", past)


def _copy(code, source, at, to, first, last):  # type: ignore[no-untyped-def]
    """to[first : last] ← source[at : …] in vectors of VECTOR bytes; the last one may go beyond `last`."""
    builder, (number, bytes_) = code.builder, code.number(0)
    assert code.kinds[0].layout == code.kinds[2].layout == "C"  # side by side
    vector = code.ir.VectorType(number, VECTOR // bytes_)
    with code.tools.for_range_slice(builder, first, last, code.whole(vector.count)) as (place, _):
        there = builder.add(at, builder.sub(place, first))
        builder.store(
            builder.load(code.piece(vector, 0, there), align=bytes_),
            code.piece(vector, 2, place),
            align=bytes_,
        )


def _tally(code, flags, which, first, last):  # type: ignore[no-untyped-def]
    """How many of flags[which[n]] are 1 and not 0, over n from `first` to before `last`.

    They are read one by one: LLVM makes vectors of single bytes otherwise, which takes twice as long.
    """
    builder, whole = code.builder, code.whole
    total = code.tools.alloca_once(builder, whole)
    builder.store(whole(0), total)
    with code.tools.for_range_slice(builder, first, last, whole(1)) as (place, _):
        at = builder.zext(builder.load(code.at(1, place)), whole)
        flag = builder.zext(builder.load_atomic(code.at(0, at), "monotonic", 1), whole)
        builder.store(builder.add(builder.load(total), flag), total)
    return builder.load(total)


def _total(code, ones, values, first, last):  # type: ignore[no-untyped-def]
    """Σ values[n] where ones[n] is 1 and not 0, over n from `first` to before `last`: a multiple of eight.

    Eight sums side by side, then ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), as numpy adds up.
    """
    builder, ir, (number, bytes_) = code.builder, code.ir, code.number(1)
    vector, flags = ir.VectorType(number, 8), ir.VectorType(code.number(0)[0], 8)
    (found,) = code.sums(ir.Constant(vector, None), 1)
    with code.tools.for_range_slice(builder, first, last, code.whole(8)) as (n, _):
        on = builder.uitofp(builder.load(code.piece(flags, 0, n), align=1), vector)
        code.add(found, builder.load(code.piece(vector, 1, n), align=bytes_), on)
    sums = [builder.extract_element(builder.load(found), ir.IntType(32)(lane)) for lane in range(8)]
    while len(sums) > 1:
        sums = [builder.fadd(one, other) for one, other in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def _learn(code, y, g, left, factor, add, tile, slopes, which, size):  # type: ignore[no-untyped-def]
    """g[left …] ← factor · Σ slopes[c, s] · tile[s, :size] over s from `begin` to before `end`.

    `which` is (c, begin, end). With `add`, y[left …] += its change.
    """
    builder, (number, bytes_) = code.builder, code.number(5)
    c, begin, end = (builder.extract_value(which, n) for n in range(3))
    for pieces in code.pieces(number, size, SPAN, code.details[0]):
        totals = [code.sums(code.ir.Constant(kind, None), 1)[0] for kind, _ in pieces]
        with code.tools.for_range_slice(builder, begin, end, code.whole(1)) as (sample, _):
            by = builder.load(code.at(6, c, sample))
            code.add_parts(totals, pieces, by, code.at(5, sample, code.whole(0)))
        new = []
        for (kind, _), total in zip(pieces, totals, strict=True):
            new.append(builder.fmul(code.all_of(kind, factor), builder.load(total)))
        with builder.if_then(add):
            parts = zip(
                code.parts(pieces, code.at(0, left)), code.parts(pieces, code.at(1, left)), strict=True
            )
            old = [
                [builder.load(part, align=bytes_) for part in both] for both in parts
            ]  # before any is written
            for each, (was, gone), part in zip(new, old, code.parts(pieces, code.at(0, left)), strict=True):
                builder.store(builder.fadd(was, builder.fsub(each, gone)), part, align=bytes_)
        for each, part in zip(new, code.parts(pieces, code.at(1, left)), strict=True):
            builder.store(each, part, align=bytes_)


def _blend(code, start, own, to, x, links, some, left, size):  # type: ignore[no-untyped-def]
    """A piece of a row of weighted sums over those links from `first` to before `last` that are active.

    to ← own · start + Σ weights[n] · x[senders[n] - base, left …] as in `_weigh`, where `links` are (senders,
    weights, active) and `some` is (first, last, base). `own` is in double precision; the weights of active
    links are taken from it first if the details say so. Which links are active is read from bits: a branch
    for each could not be foreseen.
    """
    builder, whole, (number, bytes_) = code.builder, code.whole, code.number(3)
    double, rests = code.ir.DoubleType(), code.details[1]
    first, last, base = (builder.extract_value(some, n) for n in range(3))
    for pieces in code.pieces(number, size, SPAN, code.details[0]):
        totals = [code.sums(code.ir.Constant(kind, None), 1)[0] for kind, _ in pieces]
        (gone,) = code.sums(double(0.0), 1)
        with code.tools.for_range_slice(builder, first, last, whole(32)) as (begin, _):
            active = code.flags(4, 2, begin, last)
            with code.each_bit(active) as bit:
                sender, weight = (builder.load(code.at(4, builder.add(begin, bit), of=n)) for n in (0, 1))
                sender, by = builder.sext(sender, whole), code.cast(weight, number)
                if rests:
                    builder.store(builder.fadd(builder.load(gone), code.cast(by, double)), gone)
                code.add_parts(totals, pieces, by, code.at(3, builder.sub(sender, base), left))
        kept = code.cast(builder.fsub(own, builder.load(gone)), number)
        code.add_parts(totals, pieces, kept, code.at(0))
        code.store_parts(totals, pieces, code.at(2), bytes_)


def _blend_both(code, states, outs, places, own, step, links, some, size):  # type: ignore[no-untyped-def]
    """Rows of x and y, at most SPAN bytes, mixed in one pass, as `_blend` mixes one; and a step along y.

    outs[1][to] ← own · y[row] + Σ b · y[sender], outs[0][to] ← rest · x[row] + Σ a · x[sender] - step · that,
    where `states` are (x, y), `places` (row, to), `links` (senders, a, b, active) and `some` (first, last).
    """
    builder, whole, double = code.builder, code.whole, code.ir.DoubleType()
    number = code.context.get_data_type(code.kinds[0][0].dtype)
    (row, to), (first, last) = ([builder.extract_value(pair, n) for n in range(2)] for pair in (places, some))
    for pieces in code.pieces(number, size, SPAN, code.details[0]):
        totals = [[code.sums(code.ir.Constant(kind, None), 1)[0] for kind, _ in pieces] for _ in range(2)]
        (gone,) = code.sums(double(0.0), 1)
        with code.tools.for_range_slice(builder, first, last, whole(32)) as (begin, _):
            active = code.flags(5, 3, begin, last)
            with code.each_bit(active) as bit:
                link = builder.add(begin, bit)
                sender = builder.sext(builder.load(code.at(5, link, of=0)), whole)
                weights = [builder.load(code.at(5, link, of=n)) for n in (1, 2)]
                builder.store(builder.fadd(builder.load(gone), code.cast(weights[0], double)), gone)
                for n, by in enumerate(weights):
                    code.add_parts(totals[n], pieces, by, code.at(0, sender, whole(0), of=n))
        rest = builder.fsub(double(1.0), builder.load(gone))
        for n, by in enumerate((rest, own)):
            code.add_parts(totals[n], pieces, code.cast(by, number), code.at(0, row, whole(0), of=n))
        for x, y in zip(*totals, strict=True):
            back = code.all_of(builder.load(y).type, builder.fneg(code.cast(step, number)))
            code.add(x, back, builder.load(y))
        for n in range(2):
            code.store_parts(totals[n], pieces, code.at(1, to, whole(0), of=n), 4)


def _widen(code, x, row, left, size, unit, to, at):  # type: ignore[no-untyped-def]
    """to[at, :size] ← unit · x[row, left : left + size], of whole numbers or floats.

    `size` is at least the numbers of `to` in 64 bytes.
    """
    (number, bytes_), builder = code.number(5), code.builder
    vector = code.ir.VectorType(number, 64 // bytes_)
    first, target = code.at(0, row, left), code.at(5, at, code.whole(0))

    def step(place: IR) -> None:
        here = builder.bitcast(builder.gep(target, [place]), vector.as_pointer())
        given = code.numbers(0, builder.gep(first, [place]), vector, unit)
        builder.store(given, here, align=bytes_)

    last = builder.sub(size, code.whole(vector.count))
    with code.tools.for_range_slice(builder, code.whole(0), last, code.whole(vector.count)) as (place, _):
        step(place)
    step(last)  # some numbers twice


def _slope_sums(code, x, samples, count, left, unit, slopes, c, to, size):  # type: ignore[no-untyped-def]
    """to[n, :size] ← Σ slopes[n, s] · unit · x[samples[s], left : left + size] over s < count.

    For as many n from `c` on as the details say; `size` is at least the numbers of `to` in 64 bytes. Samples
    become floats in registers and are used for all of these n; no float of them goes through memory.
    """
    builder, whole, (number, bytes_) = code.builder, code.whole, code.number(7)
    vector, classes = code.ir.VectorType(number, 64 // bytes_), range(code.details[0])
    lanes = whole(vector.count)

    def block(place: IR, many: int) -> None:
        totals = [code.sums(code.ir.Constant(vector, None), many) for _ in classes]
        with code.tools.for_range(builder, count) as loop:
            sample = builder.load(code.at(1, loop.index))
            pointer = code.at(0, sample, builder.add(left, place))
            given = []
            for n in range(many):
                given.append(code.numbers(0, builder.gep(pointer, [whole(n * vector.count)]), vector, unit))
            for n in classes:
                slope = code.all_of(vector, builder.load(code.at(5, builder.add(c, whole(n)), loop.index)))
                for total, one in zip(totals[n], given, strict=True):
                    code.add(total, slope, one)
        for n in classes:
            for m, total in enumerate(totals[n]):
                there = builder.add(place, whole(m * vector.count))
                target = code.piece(vector, 7, builder.add(c, whole(n)), there)
                builder.store(builder.load(total), target, align=bytes_)

    # As many vectors as registers hold the sums of; then one by one. The last one has some numbers twice.
    many = 4 if code.wide else 2 if len(classes) == 1 else 1
    span = whole(many * vector.count)
    end = builder.mul(builder.sdiv(size, span), span)
    with code.tools.for_range_slice(builder, whole(0), end, span) as (place, _):
        block(place, many)
    last = builder.sub(size, lanes)
    with code.tools.for_range_slice(builder, end, size, lanes) as (place, _):
        block(builder.select(builder.icmp_signed("<", place, last), place, last), 1)


def _dots(code, model, first, second, tile, rows, size, sums):  # type: ignore[no-untyped-def]
    """Eight inner products in one pass, or in two where registers are short.

    sums (8,) ← model[first : first + size] · tile[row, :size] for the four rows, then the same for `second`.
    `size` is at least the numbers in 64 bytes. Products are added up in a fixed order, the same on every
    processor.
    """
    builder, ir, whole, (number, bytes_) = code.builder, code.ir, code.whole, code.number(0)
    lanes = 64 // bytes_
    span = lanes if code.wide else lanes // 2  # eight sums and what they are made from fit the registers

    given = [code.at(0, place) for place in (first, second)]
    given += [code.at(3, builder.extract_value(rows, n), whole(0)) for n in range(4)]
    piece, parts = ir.VectorType(number, span), []
    last = builder.sub(size, whole(lanes))

    def products(place: IR, totals: list[IR], fresh: IR | None = None) -> None:
        there = (builder.bitcast(builder.gep(pointer, [place]), piece.as_pointer()) for pointer in given)
        pieces = [builder.load(pointer, align=bytes_) for pointer in there]
        if fresh is not None:
            none = ir.Constant(piece, None)
            pieces[:2] = (builder.select(fresh, each, none) for each in pieces[:2])
        for n, total in enumerate(totals):
            code.add(total, pieces[n // 4], pieces[2 + n % 4])

    rest, like = builder.and_(size, whole(lanes - 1)), ir.IntType(8 * bytes_)  # as wide as the numbers
    for begin in range(0, lanes, span):
        totals = code.sums(ir.Constant(piece, None), 8)
        end = builder.add(last, whole(begin + 1))
        with code.tools.for_range_slice(builder, whole(begin), end, whole(lanes)) as (place, _):
            products(place, totals)
        with builder.if_then(builder.icmp_signed("!=", rest, whole(0))):
            order = ir.Constant(ir.VectorType(like, span), [like(begin + n) for n in range(span)])
            had = builder.trunc(builder.sub(whole(lanes - 1), rest), like)  # by the vectors before the last
            fresh = builder.icmp_signed(">", order, code.all_of(order.type, had))
            products(builder.add(last, whole(begin)), totals, fresh)
        parts.append([builder.load(total) for total in totals])
    # Of two passes, the sums of both are what the first halving of whole vectors would give.
    found = parts[0] if len(parts) == 1 else [builder.fadd(*both) for both in zip(*parts, strict=True)]
    sums = code.lane_sums(found)
    builder.store(sums, code.piece(sums.type, 6, whole(0)), align=bytes_)


def _scores(code, model, first, stride, x, samples, left, size, unit, sums):  # type: ignore[no-untyped-def]
    """sums[4 n + m] ← model[first + n · stride …] · unit · x[samples[m], left …] in `size` numbers.

    For four m and as many n as the details say; the same bits as `dots` of a tile. `size` is a multiple of
    the numbers in 64 bytes. Samples become floats in registers and are used for all of these n.
    """
    builder, whole, (number, bytes_) = code.builder, code.whole, code.number(0)
    vector, classes = code.ir.VectorType(number, 64 // bytes_), range(code.details[0])
    given = [code.at(3, builder.extract_value(samples, m), left) for m in range(4)]
    begin = [code.at(0, builder.add(first, builder.mul(stride, whole(n)))) for n in classes]
    totals = [code.sums(code.ir.Constant(vector, None), 4) for _ in classes]
    with code.tools.for_range_slice(builder, whole(0), size, whole(vector.count)) as (place, _):
        floats = [code.numbers(3, builder.gep(each, [place]), vector, unit) for each in given]
        for n in classes:
            there = builder.bitcast(builder.gep(begin[n], [place]), vector.as_pointer())
            weights = builder.load(there, align=bytes_)
            for total, one in zip(totals[n], floats, strict=True):
                code.add(total, weights, one)
    for n in classes:
        found = code.lane_sums([builder.load(total) for total in totals[n]])
        builder.store(found, code.piece(found.type, 8, whole(4 * n)), align=bytes_)


def _exp(code, x):  # type: ignore[no-untyped-def]
    """exp(x) for x of at most 0, to the last bit or two, in loops over many: libm has one for single numbers.

    e^x = 2^n e^r with a whole n and |r| <= ln(2) / 2, where a few terms of the series do. Below the smallest
    normal number it stays there; NaN stays NaN.
    """
    builder, kind, double = code.builder, x.type, x.type == code.ir.DoubleType()
    terms, low, mantissa, bias = (13, -708.0, 52, 1023) if double else (7, -87.0, 23, 127)
    upper = 0.693145751953125  # ln(2) in so few bits that n times it is exact
    rest, far = 1.42860682030941723212e-6, kind(1.5 * 2.0**mantissa)
    whole = code.ir.IntType(64 if double else 32)
    x = builder.select(builder.fcmp_ordered("<", x, kind(low)), kind(low), x)
    # A number so large that it has no bits behind the point: its last bits are n.
    shifted = builder.fma(x, kind(1 / math.log(2)), far)
    n = builder.fsub(shifted, far)
    r = builder.fma(n, kind(-rest), builder.fma(n, kind(-upper), x))
    total = kind(1 / math.factorial(terms))
    for power in reversed(range(terms)):
        total = builder.fma(total, r, kind(1 / math.factorial(power)))
    exponent = builder.add(builder.bitcast(shifted, whole), whole(bias))
    return builder.fmul(total, builder.bitcast(builder.shl(exponent, whole(mantissa)), kind))


def _many_registers(code, like):  # type: ignore[no-untyped-def]
    """Whether 32 vectors of 64 bytes stay in registers; known when a loop is compiled."""
    return code.ir.IntType(64)(int(code.wide))


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


VECTOR = 32  # bytes
ROOM = 64  # numbers on the stack of a loop
LANES = 8  # columns of the smaller product
SOME = 5  # classes whose sums stay in registers together with four samples
swap, fetch = Intrinsic(_swap, result="int64"), Intrinsic(_fetch, result="int64")
exp = Intrinsic(_exp, result="same")
many_registers = Intrinsic(_many_registers, result="int64")
scores_of_some, scores_of_one = Intrinsic(_scores, SOME), Intrinsic(_scores, 1)
look, tell = Intrinsic(_look, result="int64"), Intrinsic(_tell)
room = Intrinsic(_room, ROOM, result="array")
widen, dots = Intrinsic(_widen), Intrinsic(_dots)
weigh = Intrinsic(_weigh, 64)
sums_of_some, sums_of_one = Intrinsic(_slope_sums, SOME), Intrinsic(_slope_sums, 1)
tally = Intrinsic(_tally, result="int64")
total = Intrinsic(_total, result="float64")
learn, stream, copy = Intrinsic(_learn, 32), Intrinsic(_stream), Intrinsic(_copy)
blend_both = Intrinsic(_blend_both, 32)
blend, blend_rest = Intrinsic(_blend, 32, 0), Intrinsic(_blend, 32, 1)
product, wide_product = Intrinsic(_product, LANES), Intrinsic(_product, 2 * LANES)
