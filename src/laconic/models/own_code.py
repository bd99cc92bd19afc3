"""The Python code of a model of one's own: found, hashed, kept in a folder, and imported.

code = read_code("my_model.py")             # or a module: read_code("package.module")
code.keep(Path("runs/x/model"))             # my_model.py, and the files beside it that it imports
module = import_code(code)

A run folder keeps this code, so that a run can go on when the original has changed or is gone. To import it is to
execute it: a run folder that has such a file deserves the trust that a script deserves. Nothing is pickled.
"""

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import final

from laconic.errors import ConfigError, describe_exception
from laconic.specs import one_syntax_tree

FORMS = "Write --model FILE.py:NAME, such as my_model.py:Net, or --model PACKAGE.MODULE:NAME."

# Ranks may be threads of one process, and what is imported belongs to all of them.
_one_import = threading.RLock()
_imported: dict[tuple[str, str], ModuleType] = {}
_own_modules: dict[tuple[str, str], dict[str, ModuleType]] = {}


@final
@dataclass(frozen=True)
class ModelCode:
    """The files of a model.

    Args:
        source: the absolute path of a file, or the name of a module.
        root: the folder that the files are imported from.
        main: the model's own file, as a path from `root`.
        files: the text of that file and of those below `root` that it imports, by path from `root`.
        is_installed: whether it belongs to an installed package, of which a run folder keeps no copy.
    """

    source: str
    root: Path
    main: str
    files: Mapping[str, bytes]
    is_installed: bool = False

    @property
    def path(self) -> Path:
        """The model's own file."""
        return self.root / self.main

    @property
    def sha256(self) -> str:
        """Hash of the names and texts of all files."""
        digest = hashlib.sha256()
        for name, text in sorted(self.files.items()):
            digest.update(f"{name}\n{len(text)}\n".encode() + text)
        return digest.hexdigest()

    def keep(self, folder: Path) -> None:
        """Copies the files into `folder`; those of an installed package are not."""
        if self.is_installed:
            return
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text)


def is_file(source: str) -> bool:
    """Whether `source` names a file, and not a module."""
    return source.endswith(".py") or os.sep in source


def read_code(source: str, kept: Path | None = None) -> ModelCode:
    """Returns the code that `source` names. Raises ConfigError where there is none.

    Args:
        kept: a folder that `ModelCode.keep` has filled; what it has is taken in place of the original.
    """
    if kept is not None and kept.is_dir():
        main = Path(source).name if is_file(source) else _module_file(kept, source)
        if main is not None and (kept / main).is_file():
            return ModelCode(source, kept.resolve(), main, _read_files(kept.resolve(), main))
    if is_file(source):
        path = Path(source).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"There is no model file {path}. {FORMS}")
        return ModelCode(str(path), path.parent, path.name, _read_files(path.parent, path.name))
    path = _find_module(source)
    root = path.parents[source.count(".") + (path.name == "__init__.py")]
    main = str(path.relative_to(root))
    installed = [Path(folder).resolve() for folder in sysconfig.get_paths().values()]
    if any(root.is_relative_to(folder) for folder in installed):
        return ModelCode(source, root, main, {main: path.read_bytes()}, is_installed=True)
    return ModelCode(source, root, main, _read_files(root, main))


def import_code(code: ModelCode) -> ModuleType:
    """Returns the module, executed once per process. Raises ConfigError, saying where, if that fails."""
    key = _key(code)
    with _one_import:
        if key not in _imported:
            _imported[key] = _import(code)
        return _imported[key]


def _import(code: ModelCode) -> ModuleType:
    try:
        with importing_from(code):
            if not is_file(code.source):
                return importlib.import_module(code.source)
            # The hash is in the name: the original and the copy of a run may both be imported.
            name = f"{code.path.stem}_{code.sha256[:8]}"
            specification = importlib.util.spec_from_file_location(name, code.path)
            assert specification is not None
            module = importlib.util.module_from_spec(specification)
            with one_syntax_tree:
                compiled = compile(code.files[code.main], code.path, "exec")
            # PyG looks the module of a convolution up by its name.
            sys.modules[name] = module
            try:
                exec(compiled, module.__dict__)  # it is the user's own code, as a script is
            except BaseException:
                del sys.modules[name]
                raise
            return module
    except SystemExit as error:
        raise ConfigError(
            f"The model file {code.path} ends the program when it is imported "
            f"({describe_exception(error, code.root)}). "
            f'Put what it runs as a script below `if __name__ == "__main__":`.'
        ) from error
    except Exception as error:
        raise ConfigError(
            f"The model file {code.path} cannot be imported: {describe_exception(error, code.root)}."
        ) from error


@contextmanager
def importing_from(code: ModelCode) -> Iterator[None]:
    """Inside, modules of the code's own names are imported from its folder, whatever was imported before.

    One thread at a time: ranks may be threads, and what Python looks for where belongs to all of them.
    """
    own = {name.partition("/")[0].removesuffix(".py") for name in code.files} if not code.is_installed else set()
    with _one_import:
        others, path, writes_bytecode = _modules_of(own), list(sys.path), sys.dont_write_bytecode
        for name in others:
            del sys.modules[name]
        # What the code has imported already is not executed again.
        sys.modules.update(_own_modules.get(_key(code), {}))
        sys.path.insert(0, str(code.root))
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        try:
            yield
        finally:
            _own_modules[_key(code)] = _modules_of(own)
            sys.path[:] = path
            sys.dont_write_bytecode = writes_bytecode
            sys.modules.update(others)


def _modules_of(packages: set[str]) -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in packages}


def _key(code: ModelCode) -> tuple[str, str]:
    return str(code.path), code.sha256


def _find_module(name: str) -> Path:
    """Returns the file of a module, looked for in the current folder too, as `python -m` does."""
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        found = importlib.util.find_spec(name)
    except Exception as error:
        raise ConfigError(f"There is no module {name!r}: {describe_exception(error, Path.cwd())}. {FORMS}") from error
    finally:
        sys.path[:] = path
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise ConfigError(f"There is no module {name!r} of Python code. {FORMS}")
    return Path(found.origin).resolve()


def _read_files(root: Path, main: str) -> dict[str, bytes]:
    """Returns the texts of a file and of all files below `root` that it imports, and those, and so on."""
    files: dict[str, bytes] = {}
    waiting = [main]
    while waiting:
        name = waiting.pop()
        if name not in files:
            files[name] = (root / name).read_bytes()
            waiting += [found for module in _imported_names(files[name], name) if (found := _module_file(root, module))]
            folders = list(Path(name).parents)[:-1]
            waiting += [str(folder / "__init__.py") for folder in folders if (root / folder / "__init__.py").is_file()]
    return files


def _imported_names(text: bytes, name: str) -> list[str]:
    """Returns the modules that a file may import, by their full names."""
    try:
        with one_syntax_tree:
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        # Told when it is imported.
        return []
    package = Path(name).parent.parts
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


def _module_file(root: Path, module: str) -> str | None:
    """Returns the file of a module below `root`, as a path from there; None where it is not there."""
    parts = [part for part in module.split(".") if part]
    if not parts:
        return None
    plain = Path(*parts)
    return next(
        (str(file) for file in (plain.with_suffix(".py"), plain / "__init__.py") if (root / file).is_file()), None
    )
