"""The warm-up leaves no kernel to be compiled in the middle of a user's work."""

import subprocess
import sys

SCRIPT = """
import laconic.kernels
from laconic.cli.findings import _cached_kernels
from laconic.trainer.warm_up import warm_up_all

warm_up_all()
names = [kernel.py_func.__name__ for kernel in _cached_kernels(laconic.kernels) if not kernel.signatures]
# One with an underscore is called by other kernels, and is not loaded where they come from the disk.
print([name for name in names if not name.startswith("_")])
"""


def test_every_kernel_is_compiled() -> None:
    # A process of its own: in this one, other tests have used kernels already.
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
