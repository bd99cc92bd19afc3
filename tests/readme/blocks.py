"""The code blocks of a page of documentation, and how each is run.

| fence           | how its lines are run                                                            |
|-----------------|----------------------------------------------------------------------------------|
| `sh`            | one shell, line after line; the first that fails ends it                         |
| `sh machines`   | every line is one machine's: all are started at once                             |
| `sh machines=2` | every line is started on two machines at once, one line after the other          |
| `python`        | a script                                                                         |
| `diff`          | a script: the lines that are kept and the lines that are added                   |
| `text`          | not run: a tree, or what a command printed                                       |
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LANGUAGES = ("sh", "python", "diff", "text")


@dataclass(frozen=True)
class Block:
    """One code block."""

    page: str
    line: int
    """Number of its first line."""
    language: str
    setting: str
    """What the fence says behind the language."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, without those that only comment; continued lines are one."""
        joined = self.text.replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]

    @property
    def script(self) -> str:
        """The program of a python or diff block."""
        if self.language == "python":
            return self.text
        kept = [line for line in self.text.splitlines() if not line.startswith("-")]
        assert all(line[:2] in ("+ ", "  ", "+", "") for line in kept), f"{self}: a diff has two columns of signs"
        return "\n".join(line[2:] for line in kept)


def blocks_of(page: Path, root: Path) -> list[Block]:
    """Returns the blocks of a page, from top to bottom."""
    text = page.read_text()
    blocks = []
    for match in _FENCE.finditer(text):
        language, _, setting = match["info"].strip().partition(" ")
        line = text.count("\n", 0, match.start("text")) + 1
        blocks.append(Block(str(page.relative_to(root)), line, language, setting.strip(), match["text"]))
    return blocks
