"""The table of what a run moved between its ranks, by what it was for, beside exact exchange."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from laconic.units import format_bytes

if TYPE_CHECKING:
    from laconic.trainer.traffic import Traffic


def print_traffic(out: Console, traffic: "Traffic") -> None:
    """Prints bytes that all ranks together received: per epoch, on average over the run, and once for the set-up."""
    from laconic.trainer.traffic import EVERY_EPOCH

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("Received by all ranks")
    table.add_column("per epoch", justify="right")
    if traffic.exact is not None:
        table.add_column("exact exchange", justify="right")
        table.add_column("share", justify="right")
    counted = {purpose: traffic.received.get(purpose, 0) for purpose in EVERY_EPOCH}
    for purpose, received in counted.items():
        exact = 0 if traffic.exact is None else traffic.exact.get(purpose, 0)
        if received or exact:
            table.add_row(purpose, *_cells(traffic, received, exact))
    if len([row for row in counted.values() if row]) > 1:
        all_exact = 0 if traffic.exact is None else sum(traffic.exact.values())
        table.add_row("all", *_cells(traffic, sum(counted.values()), all_exact))
    table.add_row("set-up, once", format_bytes(traffic.received.get("setup", 0)))
    out.print(table)


def _cells(traffic: "Traffic", received: int, exact: int) -> list[str]:
    per_epoch = max(1, traffic.num_epochs)
    cells = [format_bytes(received / per_epoch)]
    if traffic.exact is None:
        return cells
    if not exact:
        return [*cells, "-", ""]
    share = received / exact
    return [*cells, format_bytes(exact / per_epoch), f"{share:.0%}" if share >= 0.1 or not share else f"{share:.1%}"]
