"""Imports go downwards only, and siblings on a row do not import each other (see ARCHITECTURE.md)."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "laconic"

# Highest first; a row may import what lies below it.
ROWS = [
    {"__main__"},
    {"cli"},
    {"trainer", "lab"},
    {"session"},
    {"strategies"},
    {"papers"},
    {"cached"},
    {"sharded"},
    {"gradients"},
    {"attach"},
    {"datasets", "store", "models"},
    {"partitioners", "launching"},
    {"graph", "comm"},
    {"kernels"},
    {"specs", "records", "ranks"},
    {"allocation", "atomic", "errors", "processes", "units"},
]
HEIGHT = {layer: -row for row, layers in enumerate(ROWS) for layer in layers}


def layer_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    layers = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "laconic" and len(parts) > 1 and parts[1] in HEIGHT:
                layers.add(parts[1])
    return layers


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_lies_below_it(path):
    layer = layer_of(path)
    assert layer in HEIGHT, f"{layer} has no place in the layers: add it to ROWS and to ARCHITECTURE.md"
    above = {other for other in imported_layers(path) if other != layer and HEIGHT[other] >= HEIGHT[layer]}
    assert not above, f"{path.relative_to(SOURCE)} imports {sorted(above)}, which do not lie below {layer}"


def test_kernels_know_arrays_only():
    for path in (SOURCE / "kernels").rglob("*.py"):
        imports = {
            (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not imports & {"torch", "torch_geometric"}, f"{path.name} knows torch"


def test_the_lab_knows_nothing_of_training():
    for path in (SOURCE / "lab").rglob("*.py"):
        assert imported_layers(path) <= {"lab", "processes", "records", "units", "errors"}, (
            f"{path.name} knows too much"
        )
