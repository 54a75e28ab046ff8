"""Small wheels in a local folder stand for the package index, and a small alias for the real ones."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import zipfile
from pathlib import Path

from pellucid.model_store.aliases import Alias, Part

SIZE = 3_000_000
PART_SIZE = SIZE // 2


def make_wheel(folder: Path, package: str, member: str, data: bytes) -> Path:
    """A wheel that pip accepts, with one data file."""
    name = package.replace("-", "_")
    info = f"{name}-1.0.0.dist-info"
    path = folder / f"{name}-1.0.0-py3-none-any.whl"
    files = {
        member: data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, content in files.items():
            wheel.writestr(zipfile.ZipInfo(file), content)  # with a fixed time, so that the checksum is the same
    return path


def tiny_alias(wheels: Path) -> tuple[Alias, bytes]:
    """An alias of two parts, its wheels made in a folder, and the bytes of the model."""
    data = random.Random(7).randbytes(SIZE)
    parts = []
    for number in range(2):
        package = f"pellucid-tiny-part{number + 1}"
        member = f"pellucid_tiny_part{number + 1}/data/tiny.gguf.part{number:02d}"
        wheel = make_wheel(wheels, package, member, data[number * PART_SIZE : (number + 1) * PART_SIZE])
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        parts.append(Part(package, "1.0.0", member, wheel.stat().st_size, digest))
    digest = hashlib.sha256(data).hexdigest()
    return Alias("tiny:1", "tiny.gguf", SIZE, digest, tuple(parts), "CC0-1.0", "made for tests"), data


class World:
    """A cache folder, a folder of wheels that pip looks into, and the alias they hold."""

    def __init__(self, root: Path) -> None:
        self.cache, self.wheels = root / "cache", root / "wheels"
        self.wheels.mkdir(parents=True)
        self.alias, self.data = tiny_alias(self.wheels)

    @property
    def path(self) -> Path:
        return self.cache / "models" / "tiny-1" / "tiny.gguf"

    @property
    def partial(self) -> Path:
        return self.cache / "partial" / "tiny-1"

    def wheel(self, number: int) -> Path:
        return self.wheels / self.alias.parts[number].wheel_name

    def keep_parts(self) -> None:
        """As if an earlier pull had fetched both parts, so that pip need not run."""
        self.partial.mkdir(parents=True)
        for part in self.alias.parts:
            shutil.copy(self.wheels / part.wheel_name, self.partial)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to see this world and nothing else."""
        return {
            "PELLUCID_CACHE": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "HF_HUB_CACHE": str(self.cache / "hf"),
        }

    def leftovers(self) -> list[str]:
        """Files under the cache that are neither the model, its stamp, nor a lock."""
        known = {self.path, self.path.with_name("verified.json")}
        files = [path for path in self.cache.rglob("*") if path.is_file() and path not in known]
        return sorted(path.name for path in files if path.suffix != ".lock")


class Told:
    """A Progress that writes down what it was told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.updates: dict[str, list[int]] = {}
        self.notes: list[str] = []

    def start(self, label: str, total: int) -> None:
        self.stages.append((label, total))
        self.updates[label] = []

    def update(self, done: int) -> None:
        self.updates[self.stages[-1][0]].append(done)

    def finish(self) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)
