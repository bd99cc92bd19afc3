"""The verb `doctor`: what is installed, what this machine has, what is missing."""

from collections.abc import Callable

import typer
from rich.table import Table
from rich.text import Text

from laconic import __version__
from laconic.cli.console import console
from laconic.cli.findings import Finding, find_data, find_kernels, find_lab, find_machine, find_packages

_SECTIONS: dict[str, Callable[[], list[Finding]]] = {
    "Packages": find_packages,
    "Machine": find_machine,
    "Kernels": find_kernels,
    "Data": find_data,
    "Lab": find_lab,
}
_STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}


def doctor(
    warm_up: bool = typer.Option(False, "--warm-up", help="Compile every kernel and keep it on disk for later runs."),
) -> None:
    """Shows versions, threads, memory and compiled kernels, and says what is missing.

    Ends with exit code 1 if something that Laconic needs is missing.

    **Example**

    ```
    laconic doctor
    laconic doctor --warm-up
    ```
    """
    out = console()
    if warm_up:
        from laconic.trainer.warm_up import warm_up_all

        out.print("Compiling the kernels, which takes a minute or two, once. They are kept on disk. For:", style="dim")
        warm_up_all(report=lambda line: out.print(f"  {line}", style="dim", markup=False))
        out.print()
    out.print(f"Laconic {__version__}", style="bold")
    findings: list[Finding] = []
    for title, find in _SECTIONS.items():
        found = _look(title, find)
        findings += found
        out.print()
        out.print(title, style="bold")
        out.print(_table(found))
    out.print()
    _print_advice(findings)
    if any(finding.status == "missing" for finding in findings):
        raise typer.Exit(1)


def _look(title: str, find: Callable[[], list[Finding]]) -> list[Finding]:
    # A package that is there but cannot be loaded is what doctor is for: it must not fall over it.
    try:
        return find()
    except (ImportError, OSError) as error:
        return [
            Finding(title.lower(), f"cannot be read: {error}", "missing", "Mend the packages above, then try again")
        ]


def _table(findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(min_width=17)
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    for finding in findings:
        mark = f"[{_STYLES[finding.status]}]{finding.status}[/]"
        table.add_row(f"  {finding.name}", finding.value, mark)
    return table


def _print_advice(findings: list[Finding]) -> None:
    out = console()
    advised = [finding for finding in findings if finding.advice]
    for finding in advised:
        # In one piece, so that it is wrapped as a whole.
        out.print(Text.assemble((finding.status, _STYLES[finding.status]), f" {finding.name}: {finding.advice}"))
    if not any(finding.status == "missing" for finding in advised):
        out.print("All that Laconic needs is here.", style="green")
