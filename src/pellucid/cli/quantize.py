"""`pellucid quantize`: a GGUF file or a folder of safetensors as a GGUF file with smaller weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.config import QUANTIZATIONS
from pellucid.model_store.progress import format_bytes


def quantize(
    model: Annotated[
        str, Argument(metavar="IN", help="A GGUF file, a folder of safetensors, an alias or a repository id.")
    ],
    out: Annotated[Path, Argument(metavar="OUT", help="The file to write; it must end in .gguf.")],
    kind: Annotated[str, Option("--type", help=f"Type of the float matrices: {', '.join(QUANTIZATIONS)}.")] = "q8_0",
    quiet: Annotated[bool, Option("--quiet", "-q", help="Say nothing but the path.")] = False,
) -> None:
    """Matrices in F32, F16 and BF16 take the type; embedding and head become Q8_0; routers, norms, biases and blocks
    that the file already has stay as they are. A folder of safetensors becomes a file with its tokenizer and chat
    template, in llama.cpp's names; what these cannot say is refused. The new file appears only once it is complete.
    """
    from pellucid.model_store.store import resolve
    from pellucid.models.quantization import block_type_of
    from pellucid.models.quantized_file import quantize_file

    block_type_of(kind, "type")
    path = resolve(model, progress=console.progress())
    counts = quantize_file(path, out, kind)  # type: ignore[arg-type]
    if not quiet:
        listed = ", ".join(f"{count} in {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
        console.say(f"{out}: {format_bytes(out.stat().st_size)}; tensors: {listed}")
    print(out)
