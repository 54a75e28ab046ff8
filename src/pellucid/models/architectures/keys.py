"""Reading what a model file says of itself, with errors that name the file, the key and what is allowed.

`Metadata` is GGUF's, where most keys carry the architecture as prefix; `JSONConfig` is a config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pellucid.errors import ModelFileError, UnsupportedModelError, shown


class Keys:
    """A mapping of untrusted values."""

    kind = "key"

    def __init__(self, values: Mapping[str, Any], file_name: str) -> None:
        self.values = values
        self.file_name = file_name

    def full(self, key: str) -> str:
        """The key as the file spells it."""
        return key

    def get(self, key: str) -> Any:
        """The value, unchecked; None where it is absent."""
        return self.values.get(self.full(key))

    def has(self, key: str) -> bool:
        """Whether the file has a value for it."""
        return self.get(key) is not None

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
        """A whole number in [low, high]; the default where the key is absent."""
        value = self._value(key, default)
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and low <= value <= high:
            return int(value)
        raise self._bad(key, value, f"a whole number from {low} to {high}")

    def number(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number above `low`, at most `high`."""
        value = self._value(key, default)
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and low < value <= high:
            return float(value)
        raise self._bad(key, value, f"a number above {low:g} and at most {high:g}")

    def text(self, key: str, default: str | None = "") -> str:
        """A string; the default where the key is absent."""
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        raise self._bad(key, value, "a string")

    def flag(self, key: str, default: bool | None = False) -> bool:
        """True or false; the default where the key is absent."""
        value = self._value(key, default)
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise self._bad(key, value, "true or false")

    def numbers(self, key: str, count: int | None = None) -> tuple[float, ...]:
        """A list of `count` finite numbers."""
        value = self.get(key)
        wanted = "numbers" if count is None else f"{count} numbers"
        if not isinstance(value, (list, tuple, np.ndarray)) or (count is not None and len(value) != count):
            raise self._bad(key, value, f"a list of {wanted}")
        items: list[Any] = list(value)
        for item in items:
            if not isinstance(item, (int, float, np.number)) or isinstance(item, bool) or not -1e12 < item < 1e12:
                raise self._bad(key, value, f"a list of {wanted}")
        return tuple(float(item) for item in items)

    def texts(self, key: str, count: int) -> tuple[str, ...]:
        """A list of `count` strings."""
        value = self.get(key)
        if isinstance(value, list) and len(value) == count and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise self._bad(key, value, f"a list of {count} strings")

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a file whose value is not one of those we serve; an absent key is served."""
        value = self.get(key)
        if value is not None and value not in allowed:
            choices = ", ".join(str(choice) for choice in allowed)
            raise self.unsupported(f"{self.full(key)} is {shown(value)}, but only {choices} is supported")

    def refuse(self, message: str) -> ModelFileError:
        """The error of a file that contradicts itself."""
        return ModelFileError(f"{self.file_name}: {message}")

    def unsupported(self, message: str) -> UnsupportedModelError:
        """The error of a sound file that needs what we do not have."""
        return UnsupportedModelError(f"{self.file_name}: {message}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        return default if value is None else value

    def _bad(self, key: str, value: object, allowed: str) -> ModelFileError:
        found = "missing" if value is None else shown(value)
        return ModelFileError(f"{self.file_name}: {self.kind} {self.full(key)} is {found}, but must be {allowed}")


class Metadata(Keys):
    """GGUF metadata of one file, read through the architecture's prefix."""

    kind = "metadata key"

    def __init__(self, values: Mapping[str, Any], architecture: str, file_name: str) -> None:
        super().__init__(values, file_name)
        self.architecture = architecture

    def full(self, key: str) -> str:
        return key if "." in key and key.split(".", 1)[0] in ("general", "tokenizer") else f"{self.architecture}.{key}"


class JSONConfig(Keys):
    """A config.json as transformers writes it; `section` reads one of its objects."""

    def __init__(self, values: Mapping[str, Any], file_name: str, path: str = "") -> None:
        super().__init__(values, file_name)
        self._path = path

    def full(self, key: str) -> str:
        return key

    def _bad(self, key: str, value: object, allowed: str) -> ModelFileError:
        found = "missing" if value is None else shown(value)
        return ModelFileError(f"{self.file_name}: {self.kind} {self._path}{key} is {found}, but must be {allowed}")

    def section(self, key: str) -> JSONConfig | None:
        """An object inside; None where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._bad(key, value, "an object")
        return JSONConfig(value, self.file_name, f"{self._path}{key}.")
