"""Prose is read in narrow windows: 100 characters a line, in pages and in docstrings."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "laconic"
WIDEST = 100
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Folders are added as their docstrings are brought to this width; code may have 120.
NARROW = [*sorted((SOURCE / "gradients").rglob("*.py")), *sorted((SOURCE / "papers" / "cagnet").rglob("*.py"))]


def prose_of_page(text: str) -> list[str]:
    """The lines of a page, without those of code, output and tables, and without lone links."""
    lines, is_code = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("|") and " " in line.strip():
            lines.append(line)
    return lines


def docstrings_of(text: str) -> list[str]:
    """The lines of all docstrings as they stand in the file, those below fields too."""
    strings = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    lines = text.split("\n")
    return [line for node in strings for line in lines[node.lineno - 1 : node.end_lineno]]


def test_code_and_tables_of_a_page_may_be_wider():
    page = "Some words.\n```\nlaconic train\n```\n| a | b |\nhttps://example.org\nMore words."
    assert prose_of_page(page) == ["Some words.", "More words."]
    assert docstrings_of('"""One."""\nX = 1\n"""Two,\nthree."""\n') == ['"""One."""', '"""Two,', 'three."""']


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_of_a_page_is_wider_than_100(page):
    assert [line for line in prose_of_page(page.read_text()) if len(line) > WIDEST] == []


@pytest.mark.parametrize("module", NARROW, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_line_of_a_docstring_is_wider_than_100(module):
    assert [line for line in docstrings_of(module.read_text()) if len(line) > WIDEST] == []
