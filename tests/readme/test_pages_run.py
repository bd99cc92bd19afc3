"""README.md and docs/many_ranks.md do as they say: their commands and programs run, in order, in a fresh environment.

The environment holds what Laconic requires and no more (`borrowed.py`), and README's own line installs Laconic into it.
In a command HOST is this machine, and srun is `srun.py`. README runs in a clone; the other page in a folder with the
`data.npz` that README made, and `examples/`. A program whose first line is `# NAME.py` is saved as that file.
"""

import os
import shlex
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from tests.one_lab import one_lab
from tests.readme.blocks import LANGUAGES, Block, blocks_of
from tests.readme.borrowed import lend_kernels, make_environment, packages_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MANY_RANKS = ROOT / "docs" / "many_ranks.md"
COMMANDS = ("laconic ", "torchrun ", "srun ", "pip ", "python ")
SECONDS = 400


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows, as a clone would have them."""
    folder = tmp_path_factory.mktemp("readme") / "laconic"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def environment(clone: Path) -> dict[str, str]:
    """The variables of a shell in which a virtual environment without Laconic is active."""
    venv = clone.parent / "venv"
    make_environment(venv, ROOT)
    srun = venv / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nexec {venv}/bin/python {Path(__file__).parent / "srun.py"} "$@"\n')
    srun.chmod(0o755)
    # Of the test run itself, neither its packages nor its settings.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "OMP_"))}
    return kept | {"PATH": f"{venv}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv), "COLUMNS": "100"}


def test_a_newcomer_can_follow_the_pages(clone: Path, environment: dict[str, str]) -> None:
    """One test, as each page needs what the one before has made."""
    follow_readme(clone, environment)
    follow_many_ranks(clone, environment)
    run_demo(clone, environment)
    install_wheel(clone, environment)


def follow_readme(clone: Path, environment: dict[str, str]) -> None:
    install, *others = blocks_of(README, ROOT)
    run_block(install, clone, environment)
    installed = packages_of(Path(environment["VIRTUAL_ENV"])) / "laconic"
    lend_kernels(ROOT / "src" / "laconic", installed)
    for block in others:
        run_block(block, clone, environment)


def follow_many_ranks(clone: Path, environment: dict[str, str]) -> None:
    folder = clone.parent / "many_ranks"
    folder.mkdir()
    shutil.copy(clone / "data.npz", folder)
    shutil.copytree(clone / "examples", folder / "examples")
    with one_lab():
        for block in blocks_of(MANY_RANKS, ROOT):
            run_block(block, folder, environment)


def run_demo(clone: Path, environment: dict[str, str]) -> None:
    """The environment that README made stands for the one that make would."""
    venv = Path(environment["VIRTUAL_ENV"])
    (venv / ".ready").touch()
    run_together([f"make demo VENV={venv}"], "make demo", clone, environment)


def install_wheel(clone: Path, environment: dict[str, str]) -> None:
    """A wheel holds the command and every module."""
    build = (
        "pip wheel --quiet --no-deps --wheel-dir dist . && pip install --quiet --force-reinstall --no-deps dist/*.whl"
    )
    run_together([build, "laconic --version", "laconic datasets"], "the wheel", clone, environment, at_once=False)
    modules = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "laconic").rglob("*.py")}
    installed = packages_of(Path(environment["VIRTUAL_ENV"]))
    assert {module for module in modules if not (installed / module).is_file()} == set()


@pytest.mark.parametrize("page", [README, MANY_RANKS], ids=lambda page: page.name)
def test_no_command_hides_in_a_block_that_is_not_run(page: Path) -> None:
    for block in blocks_of(page, ROOT):
        assert block.language in LANGUAGES, f"{block}: say how it is run, by one of {LANGUAGES}"
        if block.language == "text":
            assert not [line for line in block.text.splitlines() if line.startswith(COMMANDS)], str(block)


def run_block(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """Runs a block as its fence says."""
    if block.language in ("python", "diff"):
        first = block.script.partition("\n")[0]
        name = first.removeprefix("# ") if first.startswith("# ") and first.endswith(".py") else None
        (folder / (name or "block.py")).write_text(block.script)
        if name is None:
            run_together(["python block.py"], str(block), folder, environment)
    elif block.setting == "machines":
        run_together(block.commands, str(block), folder, environment)
    elif block.setting.startswith("machines="):
        for command in block.commands:
            run_together([command] * int(block.setting.removeprefix("machines=")), str(block), folder, environment)
    elif block.language == "sh":
        run_together(block.commands, str(block), folder, environment, at_once=False)


def run_together(
    commands: list[str], where: str, folder: Path, environment: dict[str, str], *, at_once: bool = True
) -> None:
    """Runs commands at once, or one after the other, and fails with what they printed if one of them fails."""
    commands = [command.replace("HOST", "127.0.0.1") for command in commands]
    groups = [commands] if at_once else [[command] for command in commands]
    for group in groups:
        outputs = [folder / f"output-{number}.txt" for number in range(len(group))]
        started = []
        for command, output in zip(group, outputs, strict=True):
            with output.open("w") as file:
                shell = ["bash", "-euo", "pipefail", "-c", command]
                start = partial(subprocess.Popen, cwd=folder, env=environment, stdin=subprocess.DEVNULL)
                started.append(start(shell, stdout=file, stderr=subprocess.STDOUT, start_new_session=True))
        deadline = time.monotonic() + SECONDS
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        said = "\n".join(output.read_text()[-3000:] for output in outputs)
        assert not any(codes), f"{where}: {shlex.join(group)} ended with {codes}:\n{said}"
