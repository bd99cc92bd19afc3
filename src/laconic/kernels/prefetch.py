"""Asks the processor for rows that will be read soon, so that a gather over random rows does not wait for memory.

    prefetch_row(x, indices[position + 8], x.shape[1])      # inside a kernel; x is 2-D and C-contiguous

A hint only: it changes no value, and a row outside the array is harmless.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_LINE_BYTES = 64
# llvm.prefetch(address, 0 = for reading, 3 = keep in all levels of cache, 1 = data)
_READ, _KEEP, _DATA = 0, 3, 1


@intrinsic
def prefetch_row(_typing_context, array, row, num_columns):
    """Prefetches every cache line of the first `num_columns` columns of `array[row]`; for use inside kernels."""
    if not (isinstance(array, types.Array) and array.ndim == 2 and array.layout == "C"):
        raise TypeError(f"prefetch_row takes a 2-D C-contiguous array, got {array}")
    signature = types.void(array, types.intp, types.intp)

    def emit(context, builder, _signature, arguments):
        array_value, row_value, columns_value = arguments
        view = context.make_array(array)(context, builder, array_value)
        word = row_value.type
        item_bytes = ir.Constant(word, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        row_stride = cgutils.unpack_tuple(builder, view.strides, 2)[0]
        start = builder.add(builder.ptrtoint(view.data, word), builder.mul(row_value, row_stride))
        end = builder.add(start, builder.mul(columns_value, item_bytes))
        # A row may begin inside a line: begin at that line, so that none is left out.
        first_line = builder.and_(start, ir.Constant(word, -_LINE_BYTES))

        address_type = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        hint = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [address_type, number, number, number]),
            "llvm.prefetch.p0",
        )
        flags = [ir.Constant(number, flag) for flag in (_READ, _KEEP, _DATA)]
        step = ir.Constant(word, _LINE_BYTES)
        with cgutils.for_range_slice(builder, first_line, end, step, intp=word) as (line, _count):
            builder.call(hint, [builder.inttoptr(line, address_type), *flags])
        return context.get_dummy_value()

    return signature, emit
