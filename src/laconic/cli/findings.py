"""What `laconic doctor` looks at: packages, machine, kernels, data, the lab. Finds and says; changes nothing."""

import importlib
import importlib.metadata
import os
import pkgutil
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, final

from laconic.units import format_bytes

Status = Literal["ok", "note", "missing"]


@final
@dataclass(frozen=True)
class Finding:
    """One line of the report; `advice` says what to do unless `status` is ok."""

    name: str
    value: str
    status: Status = "ok"
    advice: str = ""


def find_packages() -> list[Finding]:
    """Returns the packages that Laconic requires, as its own metadata names them, with the versions found."""
    findings = [Finding("python", platform.python_version())]
    for requirement in importlib.metadata.requires("laconic") or []:
        if "extra ==" not in requirement:
            findings.append(_package(requirement))
    return findings


def _package(requirement: str) -> Finding:
    match = re.match(r"([\w.-]+?)\s*(?:>=\s*([\d.]+))?$", requirement.split(";")[0].strip())
    assert match is not None, f"pyproject.toml asks for {requirement!r}; doctor reads name>=version only"
    name, lowest = match[1], match[2] or "0"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", "missing", f'pip install "{name}>={lowest}"')
    if _numbers(version) < _numbers(lowest):
        return Finding(name, f"{version}, needs {lowest}", "missing", f'pip install --upgrade "{name}>={lowest}"')
    return Finding(name, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def find_machine() -> list[Finding]:
    """Returns cores, memory, GPU, and the threads that torch and the kernels would use."""
    import numba
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    findings = [
        Finding("system", f"{platform.system()} {platform.machine()}"),
        Finding("cores", f"{usable} of {os.cpu_count()}"),
        Finding("memory", _memory()),
        Finding("GPU", ", ".join(gpus) or "none (the CPU kernels serve)"),
        _threads("torch threads", torch.get_num_threads(), usable),
        # They follow torch, as far as numba has started threads.
        _threads("kernel threads", min(torch.get_num_threads(), int(numba.config.NUMBA_NUM_THREADS)), usable),
    ]
    chosen, priority = str(numba.config.THREADING_LAYER).lower(), tuple(numba.config.THREADING_LAYER_PRIORITY)
    return [*findings, _threading_layer((chosen,) if chosen in priority else priority)]


def _threads(name: str, count: int, usable: int) -> Finding:
    if count <= usable:
        return Finding(name, str(count))
    return Finding(name, str(count), "note", f"More threads than cores slow each other down: OMP_NUM_THREADS={usable}")


def _threading_layer(priority: tuple[str, ...]) -> Finding:
    modules = {"tbb": "tbbpool", "omp": "omppool", "workqueue": "workqueue"}
    found = [layer for layer in priority if _imports(f"numba.np.ufunc.{modules[layer]}")]
    if not found:
        return Finding("threading layer", "none", "missing", "Reinstall numba: pip install --force-reinstall numba")
    if found[0] != "workqueue":
        return Finding("threading layer", found[0])
    if len(priority) == 1:
        advice = "Kernels of several ranks in one process take turns: leave NUMBA_THREADING_LAYER unset"
    else:
        advice = (
            "Kernels of several ranks in one process take turns. Install OpenMP's library, libgomp: "
            "apt install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora)"
        )
    return Finding("threading layer", "workqueue", "note", advice)


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    available = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()) if meminfo.exists() else None
    free = f", {format_bytes(int(available[1]) * 1024)} available" if available else ""
    return f"{format_bytes(total)}{free}"


def find_kernels() -> list[Finding]:
    """Returns how many of the compiled kernels are on disk, ready for use."""
    import laconic.kernels

    kept, total, folders = count_compiled(laconic.kernels)
    where = Finding("kept in", ", ".join(sorted(folders)))
    if kept == total:
        return [Finding("compiled", f"{kept} of {total}"), where]
    advice = "The first run compiles the others as it goes; laconic doctor --warm-up does it now"
    return [Finding("compiled", f"{kept} of {total}", "note", advice), where]


def count_compiled(package: ModuleType) -> tuple[int, int, set[str]]:
    """Returns how many kernels of a package are on disk and not older than their source, of how many, and where."""
    kept, folders = 0, set()
    kernels = _cached_kernels(package)
    for kernel in kernels:
        code, folder = kernel.py_func.__code__, Path(kernel.stats.cache_path)
        source = Path(code.co_filename)
        pattern = f"{source.stem}.{kernel.py_func.__qualname__}-{code.co_firstlineno}.py*.nbi"
        newest = max((index.stat().st_mtime for index in folder.glob(pattern)), default=0.0)
        kept += newest >= source.stat().st_mtime
        folders.add(str(folder))
    return kept, len(kernels), folders


def _cached_kernels(package: ModuleType) -> list[Any]:
    from laconic.kernels.compile import ParallelKernel

    kernels = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for value in vars(module).values():
            kernel: Any = value.compiled if isinstance(value, ParallelKernel) else value
            # A numba dispatcher; one without a cache path is compiled into the kernels that call it.
            if hasattr(kernel, "py_func") and kernel.__module__ == module.__name__ and kernel.stats.cache_path:
                kernels.append(kernel)
    return kernels


def find_data() -> list[Finding]:
    """Returns where datasets are looked up by name."""
    path = os.environ.get("LACONIC_DATA", "")
    if not path:
        return [Finding("LACONIC_DATA", "not set (datasets are given by path, or built)")]
    findings = []
    for folder in path.split(os.pathsep):
        if Path(folder).is_dir():
            findings.append(Finding("LACONIC_DATA", folder))
        else:
            findings.append(Finding("LACONIC_DATA", folder, "note", f"{folder} is not a folder: make it, or unset it"))
    return findings


def find_lab() -> list[Finding]:
    """Returns whether `laconic lab` can build its network on this machine."""
    from laconic.lab.requirements import find_obstacle

    obstacle = find_obstacle()
    if obstacle is None:
        return [Finding("network lab", "can run here (root, ip and tc)")]
    return [Finding("network lab", "cannot run here", "note", f"Only for `laconic lab`. {obstacle}")]
