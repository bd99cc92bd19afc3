"""One rank of `launch`, as a process: imports the function, calls it, and leaves its result or its failure in a file.

python -m laconic.launching.worker FOLDER
"""

import importlib
import json
import os
import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from laconic.errors import CommunicationError, LaconicError, describe_exception

# What a script is imported as: not as __main__, whose last lines start the ranks.
_SCRIPT = "__laconic_script__"


def main() -> None:
    """Does what `launch` wrote down in the folder."""
    folder = Path(sys.argv[1])
    call = json.loads((folder / "call.json").read_text(encoding="utf-8"))
    sys.path[:] = call["path"]
    sys.argv[:] = call["argv"]
    rank = os.environ["RANK"]
    try:
        # Late: they bring torch.
        from laconic.launching.values import read_value, write_value

        function: Any = _import_script(call["file"]) if "file" in call else importlib.import_module(call["module"])
        for part in call["name"].split("."):
            function = getattr(function, part)
        result = function(*read_value(folder / "arguments"))
        write_value(result, folder / f"result-{rank}")
    except Exception as error:
        from laconic.launching.join import announce_failure

        # Of what went wrong between ranks, the others know.
        if not isinstance(error, CommunicationError):
            announce_failure(error)
        if not isinstance(error, LaconicError):
            traceback.print_exc()
        message = str(error) if isinstance(error, LaconicError) else describe_exception(error)
        failure = {"message": message, "is_own": not isinstance(error, CommunicationError)}
        (folder / f"failure-{rank}.json").write_text(json.dumps(failure), encoding="utf-8")
        raise SystemExit(1) from None


def _import_script(file: str) -> ModuleType:
    specification = spec_from_loader(_SCRIPT, SourceFileLoader(_SCRIPT, file))
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    # PyG looks the module of a convolution up by its name.
    sys.modules[_SCRIPT] = module
    specification.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
