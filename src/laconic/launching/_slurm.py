"""What SLURM's variables say inside a step, that is, in what srun started. `scontrol` is not run."""

import re
from collections.abc import Mapping

from laconic.errors import ConfigError

_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
# Above the ports of services, below those that the system hands out.
_FIRST_PORT = 15000
_NUM_PORTS = 15000


def in_step_of_several(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as one of several; a batch script, or a shell of salloc, is alone."""
    number = environ.get(num_tasks_variable(environ), "").strip()
    return bool(environ.get("SLURM_STEP_ID", "").strip()) and number not in ("", "0", "1")


def num_tasks_variable(environ: Mapping[str, str]) -> str:
    """Returns the variable that counts the tasks of the step; the other one may count those of the whole job."""
    return "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS", "").strip() else "SLURM_NTASKS"


def first_host(environ: Mapping[str, str]) -> str:
    """Returns the first host of the step, where SLURM places task 0 unless it was told otherwise."""
    name = next((name for name in _NODE_LISTS if environ.get(name, "").strip()), None)
    if name is None:
        raise ConfigError(
            f"None of {', '.join(_NODE_LISTS)} is set, so it is not known where rank 0 runs. Set MASTER_ADDR."
        )
    # "rack1node[01-04,07],rack2node3": up to the first comma outside of brackets, then the first number inside them.
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])*", environ[name].strip())
    host = re.sub(r"\[(\d+)[\d,-]*\]", r"\1", first.group() if first else "")
    if not re.fullmatch(r"[\w.-]+", host):
        raise ConfigError(
            f"The variable {name} should be a list of hosts such as node[01-04] or a,b, got {environ[name]!r}. "
            f"Set MASTER_ADDR to the host of rank 0."
        )
    return host


def num_tasks_here(environ: Mapping[str, str], num_tasks: int) -> int:
    """Returns how many tasks of the step run on this machine; 1 where SLURM does not say."""
    # "2(x3),1": two on each of three nodes, then one.
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        counts += [int(match[1])] * min(int(match[2] or 1), num_tasks) if match else []
    node = environ.get("SLURM_NODEID", "").strip()
    if len(counts) == 1:
        return counts[0]
    if node.isdecimal() and int(node) < len(counts):
        return counts[int(node)]
    same = environ.get("SLURM_NTASKS_PER_NODE", "").strip()
    return min(int(same), num_tasks) if same.isdecimal() else 1


def port(environ: Mapping[str, str]) -> int:
    """Returns a port that all ranks of a step know, and that other steps on the machine hardly share."""
    job, step = (environ.get(name, "").strip() for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    if not job.isdecimal():
        raise ConfigError(
            f"The variable SLURM_JOB_ID should be a whole number, got {job!r}. Set MASTER_PORT, the same for all ranks."
        )
    return _FIRST_PORT + (int(job) + 1009 * (int(step) if step.isdecimal() else 0)) % _NUM_PORTS
