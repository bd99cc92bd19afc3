import os

import pytest
from typer.testing import CliRunner

from laconic.cli.findings import find_lab
from laconic.cli.main import app
from laconic.errors import ConfigError
from laconic.lab import Lab, LinkLoss, iproute, parse_link, parse_loss, parse_seconds, requirements

runner = CliRunner()


def no_tools(tool: str) -> None:
    return None


@pytest.mark.parametrize(
    ("text", "bits"),
    [("1gbit", 10**9), ("100mbit", 10**8), ("2.5Gbit", 2_500_000_000), ("800kbit", 800_000), ("none", None)],
)
def test_link_rates_are_read_as_tc_writes_them(text: str, bits: int | None) -> None:
    assert parse_link(text) == bits


@pytest.mark.parametrize("text", ["", "fast", "1", "-1gbit", "1 gbit per second", "10gib", "0mbit", "1bit"])
def test_a_bad_link_rate_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Examples: .*1gbit.*none"):
        Lab(hosts=2, link=text)


def test_mbps_is_refused_because_tc_means_bytes_by_it() -> None:
    with pytest.raises(ConfigError, match=r"megabytes per second: write mbit.*Examples"):
        parse_link("100mbps")


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("30", 30), ("500ms", 0.5), ("2min", 120), ("1h", 3600)])
def test_times_have_units(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds
    assert parse_loss(f"2@{text}") == LinkLoss(host=2, after_seconds=seconds)


@pytest.mark.parametrize("text", ["2", "2@", "@30s", "-1@30s", "two@30s", "2@soon", "2@-3s"])
def test_a_bad_loss_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="30s"):
        parse_loss(text)


@pytest.mark.parametrize("hosts", [0, -1, 251])
def test_a_number_of_hosts_that_has_no_addresses_is_refused(hosts: int) -> None:
    with pytest.raises(ConfigError, match="1 to 250 hosts"):
        Lab(hosts=hosts, link="none")


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was made")

    monkeypatch.setattr(iproute, "_run", refuse)


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize(
    ("target", "replacement", "words"),
    [
        ((os, "geteuid"), lambda: 1000, "only root may: run it with sudo"),
        ((requirements, "_has_capabilities"), lambda: False, "--privileged"),
        ((requirements, "find_tool"), no_tools, "ip and tc cannot be found. Install iproute2"),
    ],
    ids=["no root", "a container's root", "no tools"],
)
def test_a_machine_that_cannot_is_told_what_to_do_before_anything_is_made(
    target: tuple[object, str], replacement: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*target, replacement)
    shown = runner.invoke(app, ["lab", "--hosts", "2", "--", "true"])
    said = " ".join(shown.stderr.split())
    assert shown.exit_code == 2
    assert words in said
    assert "--ranks" in said
    assert "torchrun" in said
    finding = find_lab()[0]
    assert finding.status == "note"
    assert words in finding.advice


def test_doctor_says_that_the_lab_can_run_here() -> None:
    assert find_lab()[0].status == "ok"
