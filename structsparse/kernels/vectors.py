"""Loops over some entries of an array, written out as vectors.

What a compiler makes of `for i in range(x.size)` takes up to 63 entries at an end one by one, which is most of the
time where blocks hold a hundred; and to hand over a slice of an array costs as much as a short loop. No vector is read
under a mask: the processor would not fetch ahead of it, which takes three times as long. Sums are float64; their order
depends on the number of entries alone, neither on where these lie nor on what they are part of.

Where blocks hold a hundred entries or less and their sizes differ, the ends of such loops, which no processor foresees,
are again half of the time. The functions of FEW entries take MANY vectors, or TWO, at once, whatever belongs to others
among them: sums leave it out, and factors are first spread over the entries of many blocks, each block overwriting what
the one before left behind its end, so that products know no blocks at all. 1.3 times as fast for blocks of 80 entries.
"""

from __future__ import annotations

from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = {32: 16, 64: 8}  # entries in 64 bytes, by their bits
FEW = 512  # entries: up to here a sum of squares in their own precision is as good as they are: 1e-6 at worst
TWO, MANY = 2, 8  # vectors at once; as many are read behind the entries
AHEAD = 4096  # entries: what sums ask for before they need it; the processor by itself sees to less and stops at a page
LONG = 512  # entries: from here on, vectors four at a time; where they are written, none across two cache lines
TOGETHER = 4
FUSED = ("contract",)  # a product and its sum may be rounded once


class _Walk:
    """What the loops below share: one array, its vectors, the constants spread over all lanes."""

    def __init__(self, builder, element, data, size, scalars, lanes):
        self.builder, self.element, self.data, self.size = builder, element, data, size
        self.scalars, self.lanes = scalars, lanes
        self.bits = 32 if isinstance(element, ir.FloatType) else 64
        self.vector, self.wide = ir.VectorType(element, lanes), ir.VectorType(ir.DoubleType(), lanes)
        self.numbers = [self.spread(scalar) for scalar in scalars]

    @classmethod
    def of(cls, context, builder, kind, array, start, stop, numbers):
        data = context.make_array(kind)(context, builder, array).data
        element = context.get_data_type(kind.dtype)
        scalars = cgutils.unpack_tuple(builder, numbers)
        size = builder.sub(stop, start)
        return cls(builder, element, builder.gep(data, [start]), size, scalars, LANES[kind.dtype.bitwidth])

    def spread(self, scalar):
        """The same number in all lanes."""
        kind = ir.VectorType(scalar.type, self.lanes)
        empty, lane = ir.Constant(kind, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(empty, scalar, lane(0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(lane, self.lanes), [0] * self.lanes))

    def address(self, place):
        return self.builder.bitcast(self.builder.gep(self.data, [place]), self.vector.as_pointer())

    def load(self, place):
        return self.builder.load(self.address(place), align=self.bits // 8)

    def store(self, value, place):
        self.builder.store(value, self.address(place), align=self.bits // 8)

    def zeros(self, vector):
        return ir.Constant(vector, [0.0] * self.lanes)

    def fetch(self, place):
        """Ask for the cache line of an entry, which may lie beyond the array."""
        address, flag = self.builder.bitcast(self.address(place), ir.IntType(8).as_pointer()), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
        name = "llvm.prefetch.p0" if getattr(address.type, "is_opaque", False) else "llvm.prefetch.p0i8"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        self.builder.call(function, [address, flag(0), flag(3), flag(1)])  # to read, into all caches, as data

    def total(self, wide):
        """The sum of the lanes."""
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), self.wide])
        name = f"llvm.vector.reduce.fadd.v{self.lanes}f64"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [ir.Constant(ir.DoubleType(), 0.0), wide], fastmath=("reassoc",))

    def only(self, compared, vector, number):
        """Zeros in all lanes but those with a place that is ("<", ">=") `number`."""
        short = ir.IntType(32)
        lanes = ir.Constant(ir.VectorType(short, self.lanes), list(range(self.lanes)))
        number = self.spread(self.builder.trunc(number, short))
        return self.builder.select(self.builder.icmp_signed(compared, lanes, number), vector, self.zeros(self.vector))

    def index(self, number):
        return ir.Constant(self.size.type, number)

    def take(self, place):
        """The vector at the variable `place`, which moves on."""
        here = self.builder.load(place)
        self.builder.store(self.builder.add(here, self.index(self.lanes)), place)
        return self.load(here)

    def at_least(self, many):
        return self.builder.icmp_signed(">=", self.size, self.index(many))

    def if_left(self, count):
        """Whether a vector of these few lanes belongs to the entries that add up to `count`, less than a full one."""
        some = self.builder.and_(count, self.index(self.lanes))
        return self.builder.if_then(self.builder.icmp_signed("!=", some, self.index(0)))

    def narrower(self):
        """The same with half as many lanes, a quarter, down to one."""
        lanes = self.lanes
        while (lanes := lanes // 2) > 0:
            yield _Walk(self.builder, self.element, self.data, self.size, self.scalars, lanes)

    def to_line(self):
        """How many entries lie before the first cache line that begins in the array."""
        address = self.builder.ptrtoint(self.data, self.size.type)
        missing = self.builder.and_(self.builder.neg(address), self.index(63))
        return self.builder.udiv(missing, self.index(self.bits // 8))

    @contextmanager
    def at_least_once(self, place, many):
        """Repeat the body of the `with`, which gets `place`, while entries lie `many` and more behind it."""
        builder = self.builder
        body, done = (builder.append_basic_block(name) for name in ("body", "done"))
        builder.branch(body)
        builder.position_at_end(body)
        here = builder.load(place)
        yield here
        here = builder.add(here, self.index(many))
        builder.store(here, place)
        builder.cbranch(builder.icmp_signed("<", here, self.size), body, done)
        builder.position_at_end(done)

    @contextmanager
    def loop(self, place, many):
        """Repeat the body of the `with`, which moves the variable `place` on, while `many` entries lie ahead."""
        builder = self.builder
        test, body, done = (builder.append_basic_block(name) for name in ("test", "body", "done"))
        builder.branch(test)
        builder.position_at_end(test)
        end = builder.add(builder.load(place), self.index(many))
        builder.cbranch(builder.icmp_signed("<=", end, self.size), body, done)
        builder.position_at_end(body)
        yield
        builder.branch(test)
        builder.position_at_end(done)


def _summing(formula):
    """A function (array, start, stop, numbers): the sum of formula(builder, lanes, *numbers), a vector of float64.

    The last vector ends with the entries, and lies over the one before, whose lanes are left out."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        def generate(context, builder, signature, arguments):
            walk = _Walk.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, walk.index(0))
            result = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 0.0))
            with builder.if_else(builder.icmp_signed("<", walk.size, walk.index(walk.lanes))) as (short, other):
                with short:
                    for lanes in walk.narrower():
                        with lanes.if_left(walk.size):
                            value = lanes.total(formula(builder, lanes, lanes.take(place), *lanes.numbers))
                            builder.store(builder.fadd(builder.load(result), value), result)
                with other:
                    sums = [cgutils.alloca_once_value(builder, walk.zeros(walk.wide)) for _ in range(TOGETHER)]

                    def add(slot, vector):
                        value = formula(builder, walk, vector, *walk.numbers)
                        builder.store(builder.fadd(builder.load(slot), value, flags=FUSED), slot)

                    with builder.if_then(walk.at_least(LONG), likely=False):
                        with walk.loop(place, TOGETHER * walk.lanes):
                            for slot in sums:
                                walk.fetch(builder.add(builder.load(place), walk.index(AHEAD)))
                                add(slot, walk.take(place))
                        for slot in sums[1:]:
                            builder.store(builder.fadd(builder.load(sums[0]), builder.load(slot)), sums[0])
                    with walk.loop(place, walk.lanes):
                        add(sums[0], walk.take(place))
                    last = walk.load(builder.sub(walk.size, walk.index(walk.lanes)))
                    rest = builder.and_(walk.size, walk.index(walk.lanes - 1))
                    add(sums[0], walk.only(">=", last, builder.sub(walk.index(walk.lanes), rest)))
                    builder.store(walk.total(builder.load(sums[0])), result)
            return builder.load(result)

        return types.float64(array, types.intp, types.intp, numbers), generate

    return work


def _summing_few(formula, together):
    """A function (array, start, stop, numbers): as above for FEW entries, summed up in their own precision.

    Fetches half of what it reads: of blocks of all sizes that is about what they hold."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        def generate(context, builder, signature, arguments):
            walk = _Walk.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, walk.index(0))
            sums = [cgutils.alloca_once_value(builder, walk.zeros(walk.vector)) for _ in range(TOGETHER)]
            with walk.at_least_once(place, together * walk.lanes) as here:
                for k in range(together):
                    if k < max(TWO, together // 2):
                        walk.fetch(builder.add(here, walk.index(k * walk.lanes + AHEAD)))
                    there = builder.add(here, walk.index(k * walk.lanes))
                    value = formula(builder, walk, walk.load(there), *walk.numbers)
                    value, slot = walk.only("<", value, builder.sub(walk.size, there)), sums[k % TOGETHER]
                    builder.store(builder.fadd(builder.load(slot), value, flags=FUSED), slot)
            one, two, three, four = (builder.load(slot) for slot in sums)
            total = builder.fadd(builder.fadd(one, two), builder.fadd(three, four))
            return walk.total(_widen(builder, walk, total))

        return types.float64(array, types.intp, types.intp, numbers), generate

    return work


def _filling(together):
    """A procedure (array, start, stop, numbers) that spreads a number over these entries and some behind them."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        def generate(context, builder, signature, arguments):
            walk = _Walk.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, walk.index(0))
            with walk.at_least_once(place, together * walk.lanes) as here:
                for k in range(together):
                    walk.store(walk.numbers[0], builder.add(here, walk.index(k * walk.lanes)))
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, numbers), generate

    return work


def _changing_each(formula):
    """A procedure (array, start, stop, numbers, factors): as below, the last number of the formula being one of
    `factors`, the first of them that of the entry at `start`."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers, factors):
        def generate(context, builder, signature, arguments):
            *arguments, factors = arguments
            walk = _Walk.of(context, builder, signature.args[0], *arguments)
            data = context.make_array(signature.args[4])(context, builder, factors).data
            place = cgutils.alloca_once_value(builder, walk.index(0))

            def change(lanes):
                here = builder.load(place)
                factor = _Walk(builder, walk.element, data, walk.size, (), lanes.lanes).load(here)
                lanes.store(formula(builder, lanes, lanes.take(place), *lanes.numbers, factor), here)

            for many in (TOGETHER, 1):
                with walk.loop(place, many * walk.lanes):
                    for _ in range(many):
                        change(walk)
            for lanes in walk.narrower():
                with lanes.if_left(walk.size):
                    change(lanes)
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, numbers, factors), generate

    return work


def _changing(formula):
    """A procedure (array, start, stop, numbers) that replaces each entry by formula(builder, lanes, *numbers).

    The last vector ends with the entries, and lies over the one before: it is read before that is written."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        def generate(context, builder, signature, arguments):
            walk = _Walk.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, walk.index(0))

            def change(lanes):
                here = builder.load(place)
                lanes.store(formula(builder, lanes, lanes.take(place), *lanes.numbers), here)

            def change_few(count):
                for lanes in walk.narrower():
                    with lanes.if_left(count):
                        change(lanes)

            with builder.if_else(builder.icmp_signed("<", walk.size, walk.index(walk.lanes))) as (short, other):
                with short:
                    change_few(walk.size)
                with other:
                    end = builder.sub(walk.size, walk.index(walk.lanes))
                    first = formula(builder, walk, walk.load(walk.index(0)), *walk.numbers)
                    last = formula(builder, walk, walk.load(end), *walk.numbers)
                    with builder.if_else(walk.at_least(LONG), likely=False) as (long, brief):
                        with long:
                            change_few(walk.to_line())
                            with walk.loop(place, TOGETHER * walk.lanes):
                                for _ in range(TOGETHER):
                                    change(walk)
                        with brief:
                            walk.store(first, walk.index(0))
                            builder.store(walk.index(walk.lanes), place)
                    with walk.loop(place, walk.lanes):
                        change(walk)
                    walk.store(last, end)
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, numbers), generate

    return work


def _least(builder, one, other):
    return builder.select(builder.fcmp_ordered("<", one, other), one, other)


def _most(builder, one, other):
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _soft(builder, walk, x, cut):
    low = builder.fsub(walk.zeros(walk.vector), cut)
    return builder.fsub(x, _least(builder, _most(builder, x, low), cut))


def _widen(builder, walk, x):
    return builder.fpext(x, walk.wide) if walk.bits == 32 else x


def _absolute(builder, walk, x):
    kind = ir.FunctionType(walk.vector, [walk.vector])
    name = f"llvm.fabs.v{walk.lanes}f{walk.bits}"
    return _widen(builder, walk, builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x]))


def _square(builder, walk, x):
    return _few_square(builder, walk, _widen(builder, walk, x))


def _few_square(builder, walk, x):
    return builder.fmul(x, x, flags=FUSED)


def _times(builder, walk, x, factor):
    """x * factor, with plain zeros: of negative numbers too, and of infinite ones."""
    zeros = walk.zeros(walk.vector)
    product = builder.fadd(builder.fmul(x, factor, flags=FUSED), zeros, flags=FUSED)
    return builder.select(builder.fcmp_ordered("==", factor, zeros), zeros, product)


def _after_soft(formula):
    """`formula` of soft(x, cut)."""
    return lambda builder, walk, x, cut, *numbers: formula(builder, walk, _soft(builder, walk, x, cut), *numbers)


absolute_sum = _summing(_absolute)
square_sum = _summing(_square)
soft_square_sum = _summing(_after_soft(_square))
few_square_sum, few_soft_square_sum = _summing_few(_few_square, MANY), _summing_few(_after_soft(_few_square), MANY)
two_square_sum, two_soft_square_sum = _summing_few(_few_square, TWO), _summing_few(_after_soft(_few_square), TWO)
fill, fill_two = _filling(MANY), _filling(TWO)
multiply = _changing(_times)
soft = _changing(_soft)
soft_multiply = _changing(_after_soft(_times))
multiply_each = _changing_each(_times)
soft_multiply_each = _changing_each(_after_soft(_times))
