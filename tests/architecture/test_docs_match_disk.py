"""The documentation speaks of files, verbs and names that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A path in backticks or as a link target: at least one slash, a known folder first.
PATHS = re.compile(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+)`|\]\((?!http)([\w./-]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page):
    for in_backticks, linked in PATHS.findall(page.read_text()):
        named = ROOT / in_backticks if in_backticks else page.parent / linked
        assert named.exists(), f"{page.name} names {in_backticks or linked}"


def test_the_tree_in_the_architecture_is_the_tree_on_disk():
    tree = TREE.search((ROOT / "ARCHITECTURE.md").read_text()).group(1)
    listed = set(re.findall(r"^  (\w+)/ ", tree, flags=re.MULTILINE))
    on_disk = {
        path.name for path in (ROOT / "src" / "laconic").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert listed == on_disk


TREE = re.compile(r"```text\n(src/laconic/\n.*?)```", flags=re.DOTALL)


def test_every_verb_in_the_readme_exists():
    verbs = set(re.findall(r"^laconic (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    files = {path.stem for path in (ROOT / "src" / "laconic" / "cli").glob("*.py")}
    assert verbs
    assert verbs <= files


def test_the_demo_marks_nothing_to_be_filled_in():
    for page in PAGES:
        assert "@@" not in page.read_text(), f"{page.name} has a gap"
