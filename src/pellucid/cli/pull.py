"""`pellucid pull`: a name → a verified file in the cache."""

from __future__ import annotations

from typing import Annotated

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.config import DEFAULT_MODEL
from pellucid.model_store.progress import format_bytes
from pellucid.model_store.store import pull as pull_model


def pull(
    name: Annotated[
        str, Argument(help="An alias from `pellucid list`, or a Hugging Face id such as owner/name:Q4_K_M.")
    ] = DEFAULT_MODEL,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Say nothing but the path.")] = False,
) -> None:
    """What was fetched is checked against its sha256. An interrupted fetch keeps its finished parts (gemma3:270m has
    four, smollm2:135m one), and the next one fetches the rest.
    """
    from pellucid.model_store.progress import SilentProgress

    try:
        path = pull_model(name, SilentProgress() if quiet else console.progress())
    except KeyboardInterrupt:
        if not quiet:
            console.say(f"stopped; finished parts are kept, and `pellucid pull {name}` goes on from there")
        raise
    if not quiet:
        console.say(f"{name} is ready ({format_bytes(path.stat().st_size)})")
    print(path)
