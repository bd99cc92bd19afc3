"""How fast codecs are: GB of float32 rows per second, encoded and decoded, against what they save on a 1 gbit link.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --quick

A codec earns its keep on a link if encoding and decoding take less time than sending what it saves would have. The
figure is the first over the second, for one message of rows like a hidden layer's (half of the numbers 0), frame and
checksum included.
"""

import sys

import numpy as np
import torch

from harness import Benchmark, Target, console, interleaved, make_table
from laconic.comm.codecs import Memory, MessageKey, parse_codec
from laconic.comm.frames import add_header, take_header

SHAPE = {True: (4_000, 256), False: (40_000, 256)}
GBIT = 1e9 / 8
CODECS = {
    "cast": 2.0,
    "subset": 8.0,
    "subset(by='row')": 8.0,
    "prefix": 8.0,
    "topk": 8.0,
    "quantize(bits=8)": 4.0,
    "quantize(bits=4)": 8.0,
    "quantize(bits=4, stochastic=False)": 8.0,
    "quantize(bits=2)": 16.0,
    "quantize(bits=1)": 32.0,
    "boundary_sample": 8.0,
    "low_rank": 8.0,
    "relu_bitmap": 2.0,
    "error_feedback(codec=quantize(bits=2, stochastic=False))": 16.0,
    "cache(codec=quantize(bits=4), age=2)": 16.0,
    "stale(codec=quantize(bits=4))": 8.0,
}
TARGETS = {"quantize(bits=4) over 1 gbit": Target(1.0, at_most=True)}


def measure(text: str, rate: float, shape: tuple[int, int], repeats: int) -> dict[str, float]:
    """Returns seconds to encode and to decode, and the bytes of the frame over those of the rows."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(np.maximum(rng.normal(size=shape), 0).astype(np.float32))
    key = MessageKey(0, 1, 0, 1, 0, "forward", 0, 1, np.arange(shape[0]))
    codec, sender, receiver = parse_codec(text), Memory(), Memory()
    frame = add_header(codec.encode(rows, key, rate, sender), key, 0)

    def encode() -> None:
        add_header(codec.encode(rows, key, rate, sender), key, 0)

    def decode() -> None:
        packet = take_header(frame, key, 0)
        codec.decode(packet, key, rate, width=shape[1], dtype=rows.dtype, memory=receiver)

    seconds = interleaved({"encode": encode, "decode": decode}, repeats, warm_up=2)
    return {**seconds, "share": len(frame) / rows.nbytes}


def main() -> None:
    benchmark = Benchmark.from_command_line("codecs", __doc__.splitlines()[0], dict.fromkeys((True, False), TARGETS))
    shape = SHAPE[benchmark.quick]
    num_bytes = 4 * shape[0] * shape[1]
    title = f"{shape[0]} rows of {shape[1]}, {torch.get_num_threads()} threads"
    table = make_table(title, "codec", "rate", "bytes", "encode GB/s", "decode GB/s", "time / saved on 1 gbit")
    for text, rate in CODECS.items():
        numbers = benchmark.cell(text, lambda t=text, r=rate: measure(t, r, shape, 5 if benchmark.quick else 15))
        saved = (1 - numbers["share"]) * num_bytes / GBIT
        spent = (numbers["encode"] + numbers["decode"]) / saved
        benchmark.figures[f"{text} over 1 gbit"] = spent
        speeds = [f"{num_bytes / numbers[name] / 1e9:.2f}" for name in ("encode", "decode")]
        table.add_row(text, f"{rate:g}", f"{100 * numbers['share']:.1f}%", *speeds, f"{spent:.2f}")
    console.print(table)
    benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
