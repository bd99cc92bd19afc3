"""The verb `lab`: a network of hosts on this machine, and a command on each of them."""

import os
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from laconic.cli.console import console, error_console, print_error
from laconic.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from laconic.lab import Lab, OnOutput, RunResult, Stream


def lab(
    command: list[str] = typer.Argument(
        ..., metavar="COMMAND", help="What to run once on each host, with its arguments, after two dashes."
    ),
    hosts: int = typer.Option(..., "--hosts", "-n", help="How many hosts; they are numbered from 0, as ranks are."),
    link: str = typer.Option(
        "1gbit", "--link", help="Rate of each host's link, each way, as tc writes it (100mbit, 2.5gbit), or none."
    ),
    loss_of: list[str] = typer.Option(
        [], "--loss-of", metavar="HOST@TIME", help="This host loses its link then: 2@30s. May be repeated."
    ),
    grace: str = typer.Option(
        "60s", "--grace", metavar="TIME", help="How long the others may go on when one host fails."
    ),
) -> None:
    """Runs a command on several hosts that it builds on this machine, with links as slow as you like.

    Each host is a network namespace with an address of its own; the command finds torchrun's variables there, as on a
    cluster. Bytes that each host received and sent are shown in the end. Ends with the code of the first host that
    failed. Latency is not emulated. Needs root and iproute2.

    **Example**

    ```
    laconic lab --hosts 4 --link 1gbit -- laconic train
    laconic lab -n 4 --link 100mbit --loss-of 2@30s -- python train.py
    ```
    """
    from laconic.lab import Lab, parse_loss, parse_seconds

    losses = [parse_loss(text) for text in loss_of]
    grace_seconds = parse_seconds(grace)
    with Lab(hosts=hosts, link=link) as built:
        _print_heading(built)
        result = built.run(
            command,
            environment=_columns(hosts),
            on_output=_printer(hosts),
            losses=losses,
            grace_seconds=grace_seconds,
        )
        _print_hosts(built, result)
    first = result.first_failed
    if first is not None:
        print_error(
            f"Host {first.host} failed first, with exit code {first.exit_code} after {format_seconds(first.seconds)}."
        )
        raise typer.Exit(first.exit_code)


def _prefix(host: int, hosts: int) -> str:
    return f"host {host:>{len(str(hosts - 1))}} | "


def _columns(hosts: int) -> dict[str, str]:
    # What a command draws for the whole width must leave room for the prefix.
    own = os.environ.get("COLUMNS") or error_console().width
    return {"COLUMNS": str(max(20, int(own) - len(_prefix(0, hosts))))}


def _printer(hosts: int) -> "OnOutput":
    def print_line(host: int, stream: "Stream", line: str) -> None:
        typer.echo(_prefix(host, hosts) + line, err=stream == "stderr")

    return print_line


def _print_heading(built: "Lab") -> None:
    first, last = built.addresses[0], built.addresses[-1]
    named = f"1 host ({first})" if built.num_hosts == 1 else f"{built.num_hosts} hosts ({first} to {last})"
    rate = "links without a limit" if built.link == "none" else f"links of {built.link} each way"
    error_console().print(f"Lab: {named}, {rate}.", style="dim", markup=False)


def _print_hosts(built: "Lab", result: "RunResult") -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("Host", justify="right")
    table.add_column("Address")
    table.add_column("Exit code", justify="right")
    for title in ("Time", "Received", "Packets", "Sent", "Packets"):
        table.add_column(title, justify="right")
    for host, address in zip(result.hosts, built.addresses, strict=True):
        traffic = host.traffic
        table.add_row(
            str(host.host),
            address,
            f"{host.exit_code}{' (ended)' if host.was_ended else ''}",
            format_seconds(host.seconds),
            format_bytes(traffic.received_bytes),
            format_count(traffic.received_packets),
            format_bytes(traffic.sent_bytes),
            format_count(traffic.sent_packets),
        )
    console().print(table)
    repeated = sum(host.traffic.repeated_packets for host in result.hosts)
    if repeated:
        packets = "1 packet" if repeated == 1 else f"{format_count(repeated)} packets"
        console().print(f"TCP sent {packets} a second time; they are counted, and no ledger books them.", style="dim")
