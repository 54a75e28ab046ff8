"""The pages' scripts and styles, joined in their order, and the Content-Security-Policy that lets in nothing else."""

from __future__ import annotations

import gzip
import hashlib
import io
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib import resources

SHARED_SCRIPTS = (
    "texts.js",
    "core.js",
    "trace.js",
    "files.js",
    "panels_model.js",
    "panel_sampling.js",
    "panels_serving.js",
    "summary.js",
    "compare.js",
    "page.js",
)
REPORT_SCRIPTS = (*SHARED_SCRIPTS, "findings.js", "report.js")
PLAYGROUND_SCRIPTS = (
    *SHARED_SCRIPTS,
    "api.js",
    "live.js",
    "turns.js",
    "feed.js",
    "playground.js",
    "open_playground.js",
)
SWEEP_SCRIPTS = ("texts.js", "sweep_texts.js", "core.js", "trace.js", "sweep.js")
PLAYGROUND_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""For a page whose scripts and styles are files of its own server. Nothing inline runs, nobody may frame it."""


_LINE = 16 * 1024


@cache
def read(name: str) -> str:
    """One file of `web/`."""
    return resources.files("pellucid.glass").joinpath("web", name).read_text(encoding="utf-8")


@cache
def script(names: tuple[str, ...]) -> str:
    """Scripts as one, which shares nothing with others of the page."""
    return '"use strict";\n(() => {\n' + "\n".join(read(name) for name in names) + "\n})();\n"


def offline_page(kind: str, element: str, scripts: str, style: str, data: Iterable[str]) -> str:
    """A file that holds everything: one custom element, its data as gzipped JSON lines. No text of a model is markup.

    kind: what the page is, for its scripts and styles; a name of ours. data: lines.
    """
    policy = escape(offline_policy(scripts, style), quote=False)
    return (
        '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Pellucid</title>\n'
        f"<style>{style}</style>\n</head>\n"
        f'<body data-kind="{kind}"><{element}></{element}>\n<noscript>This page needs JavaScript.</noscript>\n'
        f'<script type="application/gzip" id="trace">\n{packed(data)}\n</script>\n'
        f"<script>{scripts}</script>\n</body>\n</html>\n"
    )


def packed(lines: Iterable[str]) -> str:
    """Lines, gzipped (without a time, so that the same lines make the same text), in base64."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        for line in lines:
            file.write(line.encode())
    text = b64encode(buffer.getvalue()).decode("ascii")
    return "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))


def offline_policy(script_text: str, style_text: str) -> str:
    """For a file that holds everything: only these very scripts and styles, and no connection to anywhere."""
    return (
        f"default-src 'none'; script-src '{_hash(script_text)}'; style-src '{_hash(style_text)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )


def playground_page(most_trace_level: int = 0) -> str:
    """The shell at `/`: no data, so it needs no key.

    most_trace_level: what requests may ask for; with 0 the page goes by logprobs.
    """
    live = f' data-traces="/v1/traces/live" data-level="{most_trace_level}"' if most_trace_level else ""
    return (
        '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Pellucid</title>\n'
        '<link rel="icon" href="data:,">\n<link rel="stylesheet" href="/glass/style.css">\n'
        '<script defer src="/glass/playground.js"></script>\n</head>\n'
        f'<body data-kind="playground"{live}><pl-page></pl-page></body>\n</html>\n'
    )


def _hash(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
