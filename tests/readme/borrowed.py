"""A virtual environment that borrows from the one the tests run in what takes minutes to install or to compile.

It holds pip and the packages that pyproject.toml requires, with what these require: nothing that only tests need. Their
files are links, so pip may remove or replace them here and changes nothing there. `make` installs the same packages for
good, under the same constraints, before any test runs.
"""

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

_SCRIPT = """#!{python}
import sys
from {module} import {attribute}
sys.exit({attribute}())
"""


def make_environment(venv: Path, project: Path) -> None:
    """Makes an environment into which a project can be installed without a download of what it requires."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    for package in _requirements_of(project):
        _link(package, venv)


def lend_kernels(package: Path, installed: Path) -> None:
    """Copies what numba has compiled of a package's modules to where the same modules are installed."""
    for file in package.rglob("__pycache__/*.nb[ic]"):
        copy = installed / file.relative_to(package)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(file, copy)


def packages_of(venv: Path) -> Path:
    """The folder that holds the packages of an environment."""
    return next(venv.glob("lib/python*/site-packages"))


def _requirements_of(project: Path) -> list[Distribution]:
    pending = ["pip", *tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]]
    found: dict[str, Distribution] = {}
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        package = distribution(requirement.name)
        if package.name not in found:
            found[package.name] = package
            pending.extend(package.requires or ())
    return list(found.values())


def _link(package: Distribution, venv: Path) -> None:
    """Links the files of a package, and writes its commands anew, as these name their environment."""
    packages = packages_of(venv)
    assert package.files is not None, package.name
    for file in package.files:
        if ".." not in file.parts:
            link = packages / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(str(file.locate()))
    for command in package.entry_points.select(group="console_scripts"):
        script = venv / "bin" / command.name
        python = venv / "bin" / "python"
        script.write_text(_SCRIPT.format(python=python, module=command.module, attribute=command.attr))
        script.chmod(0o755)
