"""Documents that a user writes: YAML files with a mapping of keys at the top level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simstrag.documents.file_io import require_path
from simstrag.errors import InputError


def read_mapping(path: Path, what: str, example: str) -> Mapping[str, Any]:
    """The top-level mapping of a YAML file.

    what: the kind of document, for messages.
    example: a line of such a document, for messages.

    Raises `InputError` that names the file, the line if known, and the mistake; of a missing file,
    the nearest existing name.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    require_path(path)
    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read the {what}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file; a {what} is YAML") from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(f"{path}{line}: not valid YAML: {problem}") from None
    except (ValueError, RecursionError) as error:  # an impossible date, endless nesting
        raise InputError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: a {what} is a mapping of keys, such as `{example}`")
    return data
