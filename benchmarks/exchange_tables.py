"""Tables of exchange.py: the seconds and their bound, the bytes and the setup, and SAR; a row for each contender."""

from collections.abc import Mapping
from typing import Any

from harness import console, make_table


class Tables:
    """What a reader wants to see of a run."""

    def __init__(self) -> None:
        self._seconds = make_table(
            "seconds per epoch: four hosts of one thread, all on this machine",
            "graph, parts, model, link",
            "contender",
            "epoch",
            "bound",
            "over",
            "over steps",
            "compute",
            "wire",
            "overlap",
        )
        self._bytes = make_table(
            "MB that a host receives in an epoch, mean and most; the interfaces; setup; what was chosen",
            "graph, parts, model, link",
            "contender",
            "MB",
            "busiest",
            "counters",
            "setup, s",
            "of 100",
            "choice",
        )
        self._sar = make_table(
            "debian, SAGE, against SAR", "parts, link", "contender", "SAR s", "s", "gain", "SAR MB", "MB", "share"
        )

    def add(self, cell: str, numbers: Mapping[str, Mapping[str, Any]], sar: tuple[float, float] | None) -> None:
        """Adds a cell.

        Args:
            cell: its name.
            numbers: of each contender.
            sar: seconds and bytes of SAR, where they are known.
        """
        for number, (name, of_one) in enumerate(numbers.items()):
            self._add_contender(cell if number == 0 else "", name, of_one)
            if sar is not None:
                seconds, num_bytes = sar
                self._sar.add_row(
                    cell.removeprefix("debian, ").replace("sage, ", "") if number == 0 else "",
                    name,
                    f"{seconds:.1f}",
                    f"{of_one['epoch']:.2f}",
                    f"{seconds / of_one['epoch']:.2f}x",
                    f"{num_bytes / 1e6:.0f}",
                    f"{of_one['received bytes'] / 1e6:.1f}",
                    f"{of_one['received bytes'] / num_bytes:.3f}",
                )

    def _add_contender(self, cell: str, name: str, numbers: Mapping[str, Any]) -> None:
        epoch = numbers["epoch"]
        bound = [""] * 3
        if "bound" in numbers:
            over, over_steps = (f"{epoch / numbers[key]:.2f}x" for key in ("bound", "bound in steps"))
            bound = [f"{numbers['bound']:.2f}", over, over_steps]
        parts = [f"{numbers[part]:.2f}" if part in numbers else "" for part in ("compute", "wire", "overlap")]
        self._seconds.add_row(cell, name, f"{epoch:.2f}", *bound, *parts)
        self._bytes.add_row(
            cell,
            name,
            f"{numbers['received bytes'] / 1e6:.1f}",
            f"{numbers['received by the busiest'] / 1e6:.1f}",
            f"{numbers['counters']:.2%}",
            f"{numbers['setup']:.2f}",
            f"{numbers['setup share']:.2%}",
            numbers["choice"],
        )

    def show(self) -> None:
        for table in (self._seconds, self._bytes, self._sar):
            if table.row_count:
                console.print(table)
