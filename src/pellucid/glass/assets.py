"""The pages' scripts and styles, joined in their order, and the Content-Security-Policy that lets in nothing else."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from importlib import resources

SHARED_SCRIPTS = ("texts.js", "core.js", "trace.js", "panels_model.js", "panels_serving.js", "page.js")
REPORT_SCRIPTS = (*SHARED_SCRIPTS, "report.js")
PLAYGROUND_SCRIPTS = (*SHARED_SCRIPTS, "playground.js")
PLAYGROUND_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""For a page whose scripts and styles are files of its own server. Nothing inline runs, nobody may frame it."""


@cache
def read(name: str) -> str:
    """One file of `web/`."""
    return resources.files("pellucid.glass").joinpath("web", name).read_text(encoding="utf-8")


@cache
def script(names: tuple[str, ...]) -> str:
    """Scripts as one, which shares nothing with others of the page."""
    return '"use strict";\n(() => {\n' + "\n".join(read(name) for name in names) + "\n})();\n"


def report_policy(script_text: str, style_text: str) -> str:
    """For a file that holds everything: only these very scripts and styles, and no connection to anywhere."""
    return (
        f"default-src 'none'; script-src '{_hash(script_text)}'; style-src '{_hash(style_text)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def playground_page(traces: str | None = None) -> str:
    """The shell at `/`: no data, so it needs no key.

    traces: path of the engine's trace as server-sent events, where there is one.
    """
    live = f' data-traces="{traces}"' if traces else ""
    return (
        '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Pellucid</title>\n'
        '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="/glass/style.css">\n'
        '<script defer src="/glass/playground.js"></script>\n</head>\n'
        f'<body data-kind="playground"{live}><pl-page></pl-page></body>\n</html>\n'
    )


def _hash(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
