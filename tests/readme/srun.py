"""Stands in for SLURM's srun: starts a command as tasks of one step, with the variables that SLURM sets.

srun --ntasks 2 COMMAND ...
"""

import os
import subprocess
import sys


def main() -> int:
    assert sys.argv[1] == "--ntasks", sys.argv
    num_tasks, command = int(sys.argv[2]), sys.argv[3:]
    tasks = []
    for task in range(num_tasks):
        variables = {
            "SLURM_JOB_ID": str(os.getppid()),
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": str(task),
            "SLURM_LOCALID": str(task),
            "SLURM_NTASKS": str(num_tasks),
            "SLURM_STEP_NUM_TASKS": str(num_tasks),
            "SLURM_STEP_TASKS_PER_NODE": str(num_tasks),
            "SLURM_STEP_NODELIST": "localhost",
        }
        tasks.append(subprocess.Popen(command, env=os.environ | variables))
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
