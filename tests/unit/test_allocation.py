"""Freed memory is kept for the next step, unless the user says otherwise."""

import os
import subprocess
import sys

FAULTS_OF_LARGE_BLOCKS = """
import resource
from laconic.allocation import keep_freed_memory
keep_freed_memory()
for number in range(6):
    if number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * (64 << 20)
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> int:
    env = {**os.environ, **environment}
    return int(subprocess.run([sys.executable, "-c", FAULTS_OF_LARGE_BLOCKS], env=env, capture_output=True).stdout)


def test_a_block_that_was_freed_is_used_again_without_fresh_pages():
    assert faults() < 100


def test_a_variable_leaves_the_allocator_as_it_is():
    # At least a fault for each large page of five blocks.
    assert faults(LACONIC_KEEP_MEMORY="0") > 5 * 32 - 1
