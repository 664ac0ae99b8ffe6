"""Vector loops of kernels over a slice of an array: sums, products and soft thresholds, generated as LLVM code.

The loops are faster than those of the numba compiler for blocks of about a hundred entries:

- The functions take the whole array and the bounds of a slice, because passing a slice costs as much as a short loop.
- The end of a slice takes a few vector operations instead of one loop iteration per entry.
- The functions for few entries process a fixed number of vectors at once, even past the end of the slice. They have
  fewer branches that can be mispredicted. Sums leave out the entries past the end.

Sums are float64. The order of a sum depends only on the number of entries.
"""

from __future__ import annotations

from contextlib import contextmanager

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = {32: 16, 64: 8}  # number of entries in a vector of 64 bytes, for entries of 32 and 64 bits
FEW = 512  # up to this number of squares, even float32 sums have a relative error of at most 1e-6
TWO, MANY = 2, 8  # number of vectors that the functions for few entries process at once, in two variants
AHEAD = 4096  # number of entries by which sums prefetch memory ahead of use
LONG = 512  # from this number of entries on, a slice is processed by the loops for long slices
TOGETHER = 4  # number of vectors that a loop for long slices processes per iteration
FUSED = ("contract",)  # LLVM flag: a product and a sum may be rounded together


def prefetch(builder, address, writing=0):
    """Vector loops of kernels: emit an LLVM prefetch of the cache line at a byte address, to read it or write to it."""
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address.type, flag, flag, flag])
    name = "llvm.prefetch.p0" if getattr(address.type, "is_opaque", False) else "llvm.prefetch.p0i8"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    builder.call(function, [address, flag(writing), flag(3), flag(1)])


class _Vectors:
    """Vector loops of kernels: generator of LLVM code that processes a slice of an array as vectors.

    `numbers` holds the constants of a formula. Each is a vector with the constant in all lanes."""

    def __init__(self, builder, element, data, size, scalars, lanes):
        self.builder, self.element, self.data, self.size = builder, element, data, size
        self.scalars, self.lanes = scalars, lanes
        self.bits = 32 if isinstance(element, ir.FloatType) else 64
        self.vector, self.wide = ir.VectorType(element, lanes), ir.VectorType(ir.DoubleType(), lanes)
        self.numbers = [self.spread(scalar) for scalar in scalars]

    @classmethod
    def of(cls, context, builder, kind, array, start, stop, numbers):
        """Vector loops: make the code generator for the entries `start` to `stop` (exclusive) of a numba array."""
        data = context.make_array(kind)(context, builder, array).data
        element = context.get_data_type(kind.dtype)
        scalars = cgutils.unpack_tuple(builder, numbers)
        size = builder.sub(stop, start)
        return cls(builder, element, builder.gep(data, [start]), size, scalars, LANES[kind.dtype.bitwidth])

    def spread(self, scalar):
        """Vector loops: emit a vector with the same number in all lanes."""
        kind = ir.VectorType(scalar.type, self.lanes)
        empty, lane = ir.Constant(kind, ir.Undefined), ir.IntType(32)
        first = self.builder.insert_element(empty, scalar, lane(0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(lane, self.lanes), [0] * self.lanes))

    def address(self, place):
        """Vector loops: emit the address of the vector that begins at an index of the slice."""
        return self.builder.bitcast(self.builder.gep(self.data, [place]), self.vector.as_pointer())

    def load(self, place):
        """Vector loops: emit a load of the vector that begins at an index of the slice."""
        return self.builder.load(self.address(place), align=self.bits // 8)

    def store(self, value, place):
        """Vector loops: emit a store of a vector to the entries of the slice from an index on."""
        self.builder.store(value, self.address(place), align=self.bits // 8)

    def zeros(self, vector):
        """Vector loops: a constant vector of zeros of the given LLVM type."""
        return ir.Constant(vector, [0.0] * self.lanes)

    def fetch(self, place):
        """Vector loops: emit a prefetch of the cache line of an entry; the entry may lie past the end of the array."""
        prefetch(self.builder, self.builder.bitcast(self.address(place), ir.IntType(8).as_pointer()))

    def total(self, wide):
        """Vector loops: emit the sum of the lanes of a float64 vector."""
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), self.wide])
        name = f"llvm.vector.reduce.fadd.v{self.lanes}f64"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [ir.Constant(ir.DoubleType(), 0.0), wide], fastmath=("reassoc",))

    def only(self, compared, vector, number):
        """Vector loops: emit a copy of a vector with only some lanes kept, and zeros in all others.

        If `compared` is "<", the lanes with index < `number` are kept. If `compared` is ">=", the lanes with index >=
        `number` are kept."""
        short = ir.IntType(32)
        lanes = ir.Constant(ir.VectorType(short, self.lanes), list(range(self.lanes)))
        number = self.spread(self.builder.trunc(number, short))
        return self.builder.select(self.builder.icmp_signed(compared, lanes, number), vector, self.zeros(self.vector))

    def index(self, number):
        """Vector loops: an LLVM constant of the type of an index."""
        return ir.Constant(self.size.type, number)

    def take(self, place):
        """Vector loops: emit a load of the vector at the index in the variable `place`, then advance this index."""
        here = self.builder.load(place)
        self.builder.store(self.builder.add(here, self.index(self.lanes)), place)
        return self.load(here)

    def at_least(self, many):
        """Vector loops: emit the test whether the number of entries of the slice is at least `many`."""
        return self.builder.icmp_signed(">=", self.size, self.index(many))

    def if_left(self, count):
        """Vector loops: emit a branch that is taken if the last `count` entries of a slice need one more vector.

        `count` is split into different powers of two, with one vector for each. The branch is taken if `self.lanes` is
        one of these powers."""
        part = self.builder.and_(count, self.index(self.lanes))
        return self.builder.if_then(self.builder.icmp_signed("!=", part, self.index(0)))

    def narrower(self):
        """Vector loops: yield code generators for the same slice with 1/2, 1/4, ... of the lanes, down to one lane."""
        lanes = self.lanes
        while (lanes := lanes // 2) > 0:
            yield _Vectors(self.builder, self.element, self.data, self.size, self.scalars, lanes)

    def to_line(self):
        """Vector loops: emit the number of entries before the first entry that begins a cache line."""
        address = self.builder.ptrtoint(self.data, self.size.type)
        missing = self.builder.and_(self.builder.neg(address), self.index(63))
        return self.builder.udiv(missing, self.index(self.bits // 8))

    @contextmanager
    def at_least_once(self, place, many):
        """Vector loops: emit a loop around the body of the `with`, with at least one iteration.

        `many` is the number of entries per iteration. Yields the index of the first entry of the iteration."""
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
        """Vector loops: emit a loop around the body of the `with`, which ends when fewer than `many` entries remain.

        `many` is the number of entries per iteration. The body has to advance the index in the variable `place`.
        """
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
    """Vector loops: make a kernel that applies a formula to each entry of a slice and adds up the results in float64.

    The kernel has the arguments (array, start, stop, numbers), where `numbers` are constants of the formula."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        """Vector loops: the numba signature and the code generator of a sum over a slice."""

        def generate(context, builder, signature, arguments):
            """Vector loops: emit the LLVM loop of a float64 sum over a slice."""
            vectors = _Vectors.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, vectors.index(0))
            result = cgutils.alloca_once_value(builder, ir.Constant(ir.DoubleType(), 0.0))
            with builder.if_else(builder.icmp_signed("<", vectors.size, vectors.index(vectors.lanes))) as (short, full):
                with short:
                    for lanes in vectors.narrower():
                        with lanes.if_left(vectors.size):
                            value = lanes.total(formula(builder, lanes, lanes.take(place), *lanes.numbers))
                            builder.store(builder.fadd(builder.load(result), value), result)
                with full:
                    sums = [cgutils.alloca_once_value(builder, vectors.zeros(vectors.wide)) for _ in range(TOGETHER)]

                    def add(slot, vector):
                        """Vector loops: emit code that adds formula(vector) to the partial sums in variable `slot`."""
                        value = formula(builder, vectors, vector, *vectors.numbers)
                        builder.store(builder.fadd(builder.load(slot), value, flags=FUSED), slot)

                    with builder.if_then(vectors.at_least(LONG), likely=False):
                        with vectors.loop(place, TOGETHER * vectors.lanes):
                            for slot in sums:
                                vectors.fetch(builder.add(builder.load(place), vectors.index(AHEAD)))
                                add(slot, vectors.take(place))
                        for slot in sums[1:]:
                            builder.store(builder.fadd(builder.load(sums[0]), builder.load(slot)), sums[0])
                    with vectors.loop(place, vectors.lanes):
                        add(sums[0], vectors.take(place))
                    last = vectors.load(builder.sub(vectors.size, vectors.index(vectors.lanes)))
                    rest = builder.and_(vectors.size, vectors.index(vectors.lanes - 1))
                    add(sums[0], vectors.only(">=", last, builder.sub(vectors.index(vectors.lanes), rest)))
                    builder.store(vectors.total(builder.load(sums[0])), result)
            return builder.load(result)

        return types.float64(array, types.intp, types.intp, numbers), generate

    return work


def _summing_few(formula, together):
    """Vector loops: make a summing kernel for few entries, in the precision of the entries.

    The kernel has the arguments (array, start, stop, numbers), where `numbers` are constants of the formula. It reads
    several vectors at once; their number is `together`."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        """Vector loops: the numba signature and the code generator of a sum over few entries."""

        def generate(context, builder, signature, arguments):
            """Vector loops: emit the LLVM loop of a sum over few entries, with lanes past the last entry masked out."""
            vectors = _Vectors.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, vectors.index(0))
            sums = [cgutils.alloca_once_value(builder, vectors.zeros(vectors.vector)) for _ in range(TOGETHER)]
            with vectors.at_least_once(place, together * vectors.lanes) as here:
                for k in range(together):
                    if k < max(TWO, together // 2):
                        vectors.fetch(builder.add(here, vectors.index(k * vectors.lanes + AHEAD)))
                    there = builder.add(here, vectors.index(k * vectors.lanes))
                    value = formula(builder, vectors, vectors.load(there), *vectors.numbers)
                    value, slot = vectors.only("<", value, builder.sub(vectors.size, there)), sums[k % TOGETHER]
                    builder.store(builder.fadd(builder.load(slot), value, flags=FUSED), slot)
            one, two, three, four = (builder.load(slot) for slot in sums)
            total = builder.fadd(builder.fadd(one, two), builder.fadd(three, four))
            return vectors.total(_widen(builder, vectors, total))

        return types.float64(array, types.intp, types.intp, numbers), generate

    return work


def _filling(together):
    """Vector loops: make a kernel that fills a slice, and possibly some entries behind it, with one number.

    The kernel has the arguments (array, start, stop, numbers), where `numbers` holds the number. It writes several
    vectors at once; their number is `together`."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        """Vector loops: the numba signature and the code generator of a loop that fills a slice."""

        def generate(context, builder, signature, arguments):
            """Vector loops: emit the LLVM loop of stores that fills a slice."""
            vectors = _Vectors.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, vectors.index(0))
            with vectors.at_least_once(place, together * vectors.lanes) as here:
                for k in range(together):
                    vectors.store(vectors.numbers[0], builder.add(here, vectors.index(k * vectors.lanes)))
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, numbers), generate

    return work


def _changing_each(formula):
    """Vector loops: make a kernel that replaces each entry x of a slice by a formula of x and a factor per entry.

    The kernel has the arguments (array, start, stop, numbers, factors), where `numbers` are constants of the formula.
    factors[0] belongs to the entry at `start`."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers, factors):
        """Vector loops: the numba signature and the code generator of a loop with a factor per entry."""

        def generate(context, builder, signature, arguments):
            """Vector loops: emit the LLVM loop over vectors of entries and vectors of factors."""
            *arguments, factors = arguments
            vectors = _Vectors.of(context, builder, signature.args[0], *arguments)
            data = context.make_array(signature.args[4])(context, builder, factors).data
            place = cgutils.alloca_once_value(builder, vectors.index(0))

            def change(lanes):
                """Vector loops: emit the replacement of the next vector of entries, with a factor per entry."""
                here = builder.load(place)
                factor = _Vectors(builder, vectors.element, data, vectors.size, (), lanes.lanes).load(here)
                lanes.store(formula(builder, lanes, lanes.take(place), *lanes.numbers, factor), here)

            for many in (TOGETHER, 1):
                with vectors.loop(place, many * vectors.lanes):
                    for _ in range(many):
                        change(vectors)
            for lanes in vectors.narrower():
                with lanes.if_left(vectors.size):
                    change(lanes)
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, numbers, factors), generate

    return work


def _changing(formula):
    """Vector loops: make a kernel that replaces each entry x of a slice by a formula of x.

    The kernel has the arguments (array, start, stop, numbers), where `numbers` are constants of the formula. The last
    vector ends at the last entry, and may overlap the vector before it. The last vector is therefore read before any
    entry is replaced."""

    @intrinsic
    def work(typingctx, array, start, stop, numbers):
        """Vector loops: the numba signature and the code generator of a loop that replaces the entries of a slice."""

        def generate(context, builder, signature, arguments):
            """Vector loops: emit the LLVM loop that replaces the entries of a slice."""
            vectors = _Vectors.of(context, builder, signature.args[0], *arguments)
            place = cgutils.alloca_once_value(builder, vectors.index(0))

            def change(lanes):
                """Vector loops: emit the replacement of the next vector of entries by the formula."""
                here = builder.load(place)
                lanes.store(formula(builder, lanes, lanes.take(place), *lanes.numbers), here)

            def change_few(count):
                """Vector loops: emit the replacement of the next `count` entries, fewer than a full vector has."""
                for lanes in vectors.narrower():
                    with lanes.if_left(count):
                        change(lanes)

            with builder.if_else(builder.icmp_signed("<", vectors.size, vectors.index(vectors.lanes))) as (short, full):
                with short:
                    change_few(vectors.size)
                with full:
                    end = builder.sub(vectors.size, vectors.index(vectors.lanes))
                    first = formula(builder, vectors, vectors.load(vectors.index(0)), *vectors.numbers)
                    last = formula(builder, vectors, vectors.load(end), *vectors.numbers)
                    with builder.if_else(vectors.at_least(LONG), likely=False) as (long, brief):
                        with long:
                            change_few(vectors.to_line())
                            with vectors.loop(place, TOGETHER * vectors.lanes):
                                for _ in range(TOGETHER):
                                    change(vectors)
                        with brief:
                            vectors.store(first, vectors.index(0))
                            builder.store(vectors.index(vectors.lanes), place)
                    with vectors.loop(place, vectors.lanes):
                        change(vectors)
                    vectors.store(last, end)
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, numbers), generate

    return work


def _least(builder, one, other):
    """Vector loops of kernels: emit the minimum of two vectors, lane by lane."""
    return builder.select(builder.fcmp_ordered("<", one, other), one, other)


def _most(builder, one, other):
    """Vector loops of kernels: emit the maximum of two vectors, lane by lane."""
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _soft(builder, vectors, x, cut):
    """Vector loops of kernels: emit the soft threshold of a vector, x - max(-cut, min(x, cut))."""
    low = builder.fsub(vectors.zeros(vectors.vector), cut)
    return builder.fsub(x, _least(builder, _most(builder, x, low), cut))


def _widen(builder, vectors, x):
    """Vector loops of kernels: emit the conversion of a vector to float64."""
    return builder.fpext(x, vectors.wide) if vectors.bits == 32 else x


def _absolute(builder, vectors, x):
    """Vector loops of kernels: emit |x| in float64 for a vector x."""
    kind = ir.FunctionType(vectors.vector, [vectors.vector])
    name = f"llvm.fabs.v{vectors.lanes}f{vectors.bits}"
    return _widen(builder, vectors, builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x]))


def _square(builder, vectors, x):
    """Vector loops of kernels: emit x^2 in float64 for a vector x."""
    return _few_square(builder, vectors, _widen(builder, vectors, x))


def _few_square(builder, vectors, x):
    """Vector loops of kernels: emit x^2 for a vector x, in the precision of x."""
    return builder.fmul(x, x, flags=FUSED)


def _times(builder, vectors, x, factor):
    """Vector loops of kernels: emit x * factor, except that a factor of zero gives +0.0 for every x."""
    zeros = vectors.zeros(vectors.vector)
    product = builder.fadd(builder.fmul(x, factor, flags=FUSED), zeros, flags=FUSED)
    return builder.select(builder.fcmp_ordered("==", factor, zeros), zeros, product)


def _after_soft(formula):
    """Vector loops of kernels: make a formula that soft-thresholds x at `cut`, then applies the given formula."""

    def thresholded(builder, vectors, x, cut, *numbers):
        """Vector loops of kernels: emit the formula applied to the soft threshold soft(x, cut)."""
        return formula(builder, vectors, _soft(builder, vectors, x, cut), *numbers)

    return thresholded


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
