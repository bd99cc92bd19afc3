"""Which tests follow each other on one worker of pytest-xdist.

`--dist loadgroup` would say it by marks. But xdist 3.8 hands a mark on by changing a test's id, which pytest 9.2
ignores without a word (https://github.com/pytest-dev/pytest-xdist/issues/1386): no test was in any group. So a test's
folder says its group, and marks are not needed.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# These start processes or build networks. Side by side they would wait for each other's cores, and a lab that starts
# removes what a killed one left.
ONE_AFTER_ANOTHER = ("tests/processes/", "tests/lab/", "tests/cli/", "tests/readme/")
GROUP = "one after another"
# Many quick tests of a file ask about one slow run, which every worker would repeat.
FILE_BY_FILE = ("tests/contracts/",)


class ByFolder(LoadScopeScheduling):
    """Hands out one test at a time, but the tests of some folders as groups; the largest groups come first."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ONE_AFTER_ANOTHER):
            return GROUP
        return nodeid.partition("::")[0] if nodeid.startswith(FILE_BY_FILE) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFolder:
    return ByFolder(config, log)
