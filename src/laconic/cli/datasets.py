"""The verb `datasets`: which graphs can be given by name, built in or in the folders of LACONIC_DATA."""

import os
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from laconic.cli.console import console
from laconic.cli.status import LOADING, working
from laconic.units import format_count

if TYPE_CHECKING:
    from laconic.datasets import Entry


def datasets() -> None:
    """Lists the graphs that can be given by name: those built in, and those in the folders of LACONIC_DATA.

    Of two with one name the first is taken; the other is marked as hidden.

    Any other graph is given by its path: an .npz file, an unpacked OGB folder, or a folder that holds edges, features
    and labels as .csv, .parquet or .npy.

    **Example**

    ```
    laconic datasets
    LACONIC_DATA=~/graphs laconic train cora
    laconic train "sbm(nodes=5000, homophily=0.6)"
    ```
    """
    with working(LOADING):
        from laconic.datasets import available

        entries = available()
    out = console()
    out.print("Built in", style="bold")
    out.print(_generator_table([entry for entry in entries if entry.kind == "generator"]))
    out.print()
    _print_data(out, [entry for entry in entries if entry.kind != "generator"])


def _generator_table(entries: list["Entry"]) -> Table:
    table = Table.grid(padding=(0, 2))
    for entry in entries:
        arguments = Text(", ".join(entry.arguments), style="dim")
        table.add_row(Text(f"  {entry.name}", style="cyan"), Group(Text(entry.summary), arguments))
    return table


def _print_data(out: Console, entries: list["Entry"]) -> None:
    path = os.environ.get("LACONIC_DATA", "")
    out.print(
        Text.assemble(("In LACONIC_DATA", "bold"), f" ({path or 'not set: the folders to look in, joined by :'})")
    )
    if not entries:
        out.print(Text("  none"))
        return
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "right", "left"):
        table.add_column(justify=justify)
    table.add_row("  name", "kind", "nodes", "edges", "features", style="dim")
    for entry in entries:
        sizes = (format_count(size) if size else "" for size in (entry.num_nodes, entry.num_edges, entry.num_features))
        mark = "hidden" if entry.is_hidden else ""
        table.add_row(Text(f"  {entry.name}", style="cyan"), entry.kind, *sizes, mark)
    out.print(table)
    hidden = [str(entry.path) for entry in entries if entry.is_hidden]
    if hidden:
        out.print("  hidden: the name leads to another one, or to several; give the path instead:")
        for each in hidden:
            out.print(Text(f"    {each}"), soft_wrap=True)
