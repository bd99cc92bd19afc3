import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import laconic
from laconic.cli import main as main_module
from laconic.cli.console import print_error, show_log_lines
from laconic.cli.main import app
from laconic.errors import DataError

VERBS = ("train", "predict", "partition", "info", "datasets", "lab", "doctor")
runner = CliRunner()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the real command, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "laconic", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


def test_an_error_that_a_user_can_mend_ends_with_code_2_and_no_traceback() -> None:
    done = run("info", "absent.npz", LACONIC_DATA="")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "Error: absent.npz: there is no such file or folder."
    assert done.stdout == ""


@pytest.mark.parametrize(("arguments", "environment"), [(["--debug"], {}), ([], {"LACONIC_DEBUG": "1"})])
def test_debug_shows_the_traceback_wherever_it_stands(arguments: list[str], environment: dict[str, str]) -> None:
    done = run("info", "absent.npz", *arguments, **environment)
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert "Error: absent.npz" in done.stderr


@pytest.mark.parametrize("arguments", [["trian"], ["info"], ["doctor", "--colour"]])
def test_wrong_usage_ends_with_code_2_and_no_traceback(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Usage:" in done.stderr


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from laconic.cli.main import app\n"
        "try: app(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numba', 'torch_geometric', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert runner.invoke(app, ["--version"]).stdout == f"laconic {laconic.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_help_of_every_verb_has_an_example_of_it(verb: str, columns: str) -> None:
    shown = runner.invoke(app, [verb, "--help"], env={"COLUMNS": columns, "TERMINAL_WIDTH": columns})
    assert shown.exit_code == 0
    _, example = re.split(r"\n\s*Examples?:?\s*\n", shown.stdout, maxsplit=1)
    assert f"laconic {verb}" in example
    assert max(map(len, shown.stdout.splitlines())) <= int(columns)
    # A command that is cut in two cannot be copied from the screen.
    commands = [line.strip() for line in example.split("╭")[0].splitlines() if line.strip()]
    assert all(re.match(r"(\w+=\S+ )?laconic \w", command) for command in commands), commands


def test_the_verbs_are_those_that_the_help_lists() -> None:
    shown = runner.invoke(app, ["--help"]).stdout
    assert [verb for verb in VERBS if re.search(rf"\b{verb}  ", shown)] == list(VERBS)


def spoilt_app(error: BaseException) -> typer.Typer:
    """An app with the group of the real one and a verb that fails."""
    spoilt = typer.Typer(cls=main_module._Verbs, pretty_exceptions_enable=False)

    @spoilt.callback()
    def root(debug: bool = typer.Option(False, "--debug")) -> None: ...

    @spoilt.command()
    def fail() -> None:
        raise error

    return spoilt


def test_a_fault_of_ours_is_not_dressed_up() -> None:
    result = runner.invoke(spoilt_app(ZeroDivisionError("ours")), ["fail"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_an_interrupt_ends_with_code_130() -> None:
    result = runner.invoke(spoilt_app(KeyboardInterrupt()), ["fail"])
    assert result.exit_code == 130
    assert "Interrupted." in result.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/etc/laconic"), "Error: /etc/laconic: Permission denied."),
        (OSError(28, "No space left on device"), "Error: A file: No space left on device."),
        (DataError("x is wrong."), "Error: x is wrong."),
    ],
)
def test_what_the_system_refuses_is_told_with_the_file(error: Exception, message: str) -> None:
    result = runner.invoke(spoilt_app(error), ["fail"])
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def out_of_memory() -> BaseException:
    try:
        torch.empty(2**55)
    except RuntimeError as error:
        return error
    raise AssertionError("this machine has 128 PiB of memory")


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 7.28 TiB for an array"), out_of_memory()])
def test_too_little_memory_is_told_in_a_paragraph(error: BaseException) -> None:
    result = runner.invoke(spoilt_app(error), ["fail"])
    assert result.exit_code == 2
    assert re.match(
        r"Error: There is not enough memory \(.*allocate .*\)\. .*smaller", result.stderr.replace("\n", " ")
    )
    assert "enforce fail" not in result.stderr


def test_another_runtime_error_is_a_fault_of_ours() -> None:
    result = runner.invoke(spoilt_app(RuntimeError("ours")), ["fail"])
    assert result.exit_code == 1
    assert isinstance(result.exception, RuntimeError)


def test_arguments_after_two_dashes_are_left_alone() -> None:
    result = runner.invoke(app, ["info", "--", "--debug"])
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert "--debug" in result.stderr


def test_errors_are_wrapped_but_paths_and_code_keep_their_shape(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path, code = "/a/" + "long/" * 12 + "path.npz", "  code = " + "x" * 50
    print_error(f"{path}: some words that are more than fit into one line of forty [columns].\n{code}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Error:", f"{path}:"]
    assert lines[-1] == code
    assert max(map(len, lines[2:-1])) <= 40
    assert "[columns]" in "\n".join(lines)


def test_log_lines_go_to_stderr_once_however_often_the_command_ran(capsys: pytest.CaptureFixture[str]) -> None:
    show_log_lines(debug=False)
    show_log_lines(debug=False)
    logging.getLogger("laconic.somewhere").info("said %d time", 1)
    logging.getLogger("laconic.somewhere").debug("unsaid")
    logging.getLogger("laconic.somewhere").warning("careful")
    shown = capsys.readouterr()
    assert shown.err == "Note: said 1 time\nWarning: careful\n"
    assert shown.out == ""


def test_ctrl_c_at_work_ends_with_code_130_and_leaves_nothing(tmp_path: Path) -> None:
    # A graph that takes many seconds to build; the line about it says that the work has begun.
    # A shell that runs the tests in the background has it ignore Ctrl-C, and so would the command.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from laconic.cli.main import main; main()"
    )
    command = [sys.executable, "-c", code, "partition", "rmat(scale=20)", "store", "--parts", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any("Loading rmat(scale=20)" in line for line in lines)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "Interrupted.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bash_completions/laconic.sh"), ("zsh", ".zfunc/_laconic")])
def test_completion_is_installed_and_knows_the_verbs(shell: str, file: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "laconic")]
    # Typer's own way to name the shell: by default it is the one that runs the command.
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    install = [*command, "--install-completion", shell]
    done = subprocess.run(install, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "_LACONIC_COMPLETE" in (tmp_path / file).read_text()
    asked = {**environment, "_LACONIC_COMPLETE": "complete_bash", "COMP_WORDS": "laconic pa", "COMP_CWORD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=asked)
    assert done.stdout.split() == ["partition"]
