"""The library grows in what it does, not in lines of code (see count_code.py)."""

from tests.architecture.count_code import CEILING, SOURCE, count_lines, count_packages

PROGRAM = '''"""A docstring

over lines."""

# A comment.
import math


class Circle:
    """Round."""

    radius: float = 1.0  # of the unit circle
    """Below a field."""

    def area(self) -> float:
        """One."""
        text = """a value,
        no docstring"""
        return math.prod(
            [math.pi, self.radius, len(text)],
        )
'''


def test_docstrings_comments_and_blank_lines_are_free():
    assert count_lines(PROGRAM) == 9
    assert count_lines("") == 0
    assert count_lines("def f(): 'One line.'\n") == 1


def test_the_library_has_no_more_lines_of_code_than_its_ceiling():
    packages = count_packages(SOURCE)
    assert packages.total() <= CEILING, f"{packages.total() - CEILING} lines too many: {dict(packages.most_common())}"
