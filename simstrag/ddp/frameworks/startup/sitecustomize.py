"""Python imports this file when it starts, in each process that `simstrag record` begins.

It lets another `sitecustomize` run first, and then waits until the program imports torch.
"""

import contextlib
import importlib
import os
import sys

with contextlib.suppress(Exception):
    _folder = os.path.dirname(os.path.abspath(__file__))
    _ours, _path = sys.modules.pop("sitecustomize", None), sys.path[:]
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _folder]
    try:
        importlib.import_module("sitecustomize")  # that of the environment
    except ModuleNotFoundError:
        if _ours is not None:
            sys.modules["sitecustomize"] = _ours
    sys.path[:] = _path
    if os.environ.get("SIMSTRAG_RECORD"):
        from simstrag.ddp.frameworks import in_process

        in_process.wait_for_torch()
