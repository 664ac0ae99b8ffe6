"""SIMD kernels: sixteen float32 numbers as one value in numba code, so that loops need no auto-vectorisation."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16  # number of float32 numbers in a SIMD value
_vector = ir.VectorType(ir.FloatType(), LANES)
_integers = ir.VectorType(ir.IntType(32), LANES)


class Lanes(types.Type):
    """SIMD kernels: the numba type of a vector of sixteen float32 numbers."""

    def __init__(self):
        super().__init__(name="float32x16")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    """SIMD kernels: the numba data model of the type `Lanes`, an LLVM vector of sixteen float32 numbers."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, _vector)


def _address(context, builder, kind, array, place):
    """SIMD kernels: emit the address of array[place] as a pointer to sixteen float32 numbers."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), _vector.as_pointer())


@intrinsic
def load(typing, array, place):
    """SIMD kernel: load array[place : place + 16] of a flat float32 array into sixteen lanes."""

    def generate(context, builder, signature, arguments):
        """SIMD kernel: emit the LLVM load of sixteen float32 numbers."""
        return builder.load(_address(context, builder, signature.args[0], *arguments), align=4)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing, array, place, values):
    """SIMD kernel: store sixteen lanes in a flat float32 array, array[place : place + 16] = values."""

    def generate(context, builder, signature, arguments):
        """SIMD kernel: emit the LLVM store of sixteen float32 numbers."""
        builder.store(arguments[2], _address(context, builder, signature.args[0], *arguments[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _spread(builder, scalar, kind=_vector):
    """SIMD kernels: emit LLVM code for sixteen lanes that all hold the same number."""
    empty, lane = ir.Constant(kind, ir.Undefined), ir.IntType(32)
    zeros = ir.Constant(ir.VectorType(lane, LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(empty, scalar, lane(0)), empty, zeros)


@intrinsic
def spread(typing, number):
    """SIMD kernel: sixteen lanes that all hold the same float32 number."""
    return lanes(types.float32), lambda _c, builder, _s, arguments: _spread(builder, arguments[0])


def _pairwise(formula):
    """SIMD kernels: make a numba function of two sixteen-lane values that applies a formula lane by lane.

    `formula` emits the LLVM code."""

    @intrinsic
    def work(typing, one, other):
        """SIMD kernel: the numba signature and the LLVM code of an operation on two sixteen-lane values."""
        return lanes(lanes, lanes), lambda _c, builder, _s, arguments: formula(builder, *arguments)

    return work


add = _pairwise(lambda builder, a, b: builder.fadd(a, b))
subtract = _pairwise(lambda builder, a, b: builder.fsub(a, b))
multiply = _pairwise(lambda builder, a, b: builder.fmul(a, b))
divide = _pairwise(lambda builder, a, b: builder.fdiv(a, b))
largest = _pairwise(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
smallest = _pairwise(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


@intrinsic
def multiply_add(typing, one, other, sum):
    """SIMD kernel: fused multiply-add in each of sixteen lanes, one * other + sum, rounded once."""

    def generate(context, builder, signature, arguments):
        """SIMD kernel: emit a call of the LLVM function `fma` for sixteen lanes."""
        kind = ir.FunctionType(_vector, [_vector] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        return builder.call(function, arguments)

    return lanes(lanes, lanes, lanes), generate


@intrinsic
def power_of_two(typing, shifted):
    """SIMD kernel: 2^n in each of sixteen float32 lanes, for the integer n in the low bits of the lane of `shifted`."""

    def generate(context, builder, signature, arguments):
        """SIMD kernel: emit code that writes n + 127 into the exponent bits of each lane, which gives 2^n."""
        bits = builder.bitcast(arguments[0], _integers)
        bias, place = (_spread(builder, ir.IntType(32)(k), _integers) for k in (127, 23))
        return builder.bitcast(builder.shl(builder.add(bits, bias), place), _vector)

    return lanes(lanes), generate


@intrinsic
def total(typing, values):
    """SIMD kernel: the horizontal sum of sixteen float32 lanes."""

    def generate(context, builder, signature, arguments):
        """SIMD kernel: emit a sum by halves: add the lanes rotated by 8, then by 4, 2 and 1 lanes."""
        sums, kind = arguments[0], ir.IntType(32)
        half = LANES // 2
        while half:
            order = [(k + half) % LANES for k in range(LANES)]
            rotated = builder.shuffle_vector(sums, sums, ir.Constant(ir.VectorType(kind, LANES), order))
            sums, half = builder.fadd(sums, rotated), half // 2
        return builder.extract_element(sums, kind(0))

    return types.float32(lanes), generate
