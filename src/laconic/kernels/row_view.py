"""A piece of a row as an array of its own, for inner loops.

numba's own slices count references (an atomic instruction that all threads fight over) and check their bounds each
time; inside a loop over edges that costs more than the work. This view does neither, so it must not outlive its array.

Write through it in inline kernels only: in a parallel one numba does not see that it writes to the array, takes the
view for unused and leaves the writing out.

    values = row_view(x, row, head * width, width)      # inside a kernel; x is 2-D and C-contiguous
"""

from numba.core import cgutils, types
from numba.extending import intrinsic

from laconic.kernels.compile import inline_kernel


@intrinsic
def row_view(_typing_context, array, row, start, length):
    """Returns `array[row, start : start + length]`, unchecked and not counted; for use inside kernels."""
    if not (isinstance(array, types.Array) and array.ndim == 2 and array.layout == "C"):
        raise TypeError(f"row_view takes a 2-D C-contiguous array, got {array}")
    view_type = types.Array(array.dtype, 1, "C", readonly=not array.mutable)
    signature = view_type(array, types.intp, types.intp, types.intp)

    def emit(context, builder, _signature, arguments):
        array_value, row_value, start_value, length_value = arguments
        whole = context.make_array(array)(context, builder, array_value)
        row_length = cgutils.unpack_tuple(builder, whole.shape, 2)[1]
        view = context.make_array(view_type)(context, builder)
        offset = builder.add(builder.mul(row_value, row_length), start_value)
        view.data = builder.gep(whole.data, [offset])
        view.nitems = length_value
        view.itemsize = whole.itemsize
        view.shape = cgutils.pack_array(builder, [length_value])
        view.strides = cgutils.pack_array(builder, [whole.itemsize])
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        view.parent = cgutils.get_null_value(view.parent.type)
        return view._getvalue()

    return signature, emit


@inline_kernel
def clear_row(values, row):
    """values[row] = 0."""
    cells = row_view(values, row, 0, values.shape[1])
    for column in range(len(cells)):
        cells[column] = 0
