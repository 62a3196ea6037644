"""Reading YAML files that users write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bidroute.errors import ConfigError


def read_yaml(path: Path, what: str, expected: str) -> Any:
    """The document in a file; `what` it is and what it is `expected` to hold are for the messages.

    Raises ConfigError where it cannot be read, or is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"cannot read {what} {path}: {reason}; give a YAML file") from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{where}: not valid YAML; expected {expected}") from None
