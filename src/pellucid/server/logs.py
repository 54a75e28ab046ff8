"""Lines on stderr: one for each request, and what the server itself has to say, as JSON or as text.

Prompts are in them only where the operator has asked for it, answers and keys never.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

LOGGERS = {
    "pellucid": logging.DEBUG,
    "uvicorn": logging.WARNING,
    "asyncio": logging.ERROR,
    "opentelemetry": logging.WARNING,
}
"""Whose words become lines of this log while a server runs, and from which level on: asyncio warns of every client that
leaves between two writes."""

_MISTAKE = 1011
"""The close code of a WebSocket that corresponds to status 500."""
_SAID_BETTER = frozenset(
    (
        "Invalid UTF-8 sequence received from client.",
        "Invalid HTTP request received.",
        "ASGI callable returned without completing handshake.",
    )
)
"""uvicorn's words, some with a traceback, about clients' faults of which there is a line of ours that names the client:
a close code, what is wrong with the request, the status of a refused handshake."""


class Log:
    """form: json or text; level: lines below it are not written."""

    def __init__(self, form: str, level: str) -> None:
        self._is_json = form == "json"
        self._level = logging.getLevelNamesMapping()[level.upper()]

    def request(self, fields: Mapping[str, Any]) -> None:
        """The line of one request or WebSocket: an error for a mistake of ours, a warning for other failures of the
        server."""
        status = int(fields["status"])
        is_mistake = status == 500 or ("error" in fields and fields.get("close_code") == _MISTAKE)
        level = logging.ERROR if is_mistake else logging.WARNING if status > 500 else logging.INFO
        head = "{method} {path} {status}".format_map(fields)
        event = "websocket" if "close_code" in fields else "request"
        self.write(level, event, head, {k: v for k, v in fields.items() if v is not None})

    def write(self, level: int, event: str, message: str, fields: Mapping[str, Any]) -> None:
        """One line; in JSON `message` is left out for requests, whose fields say it all."""
        if level < self._level:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        name = logging.getLevelName(level).lower()
        if self._is_json:
            said = {"message": message} if event == "log" else {}
            line = json.dumps({"time": now, "level": name, "event": event, **said, **fields}, default=str)
        else:
            shown = (f"{k}={_shown(v)}" for k, v in fields.items() if k not in ("method", "path", "status"))
            line = " ".join((now, name.upper(), message.replace("\n", " "), *shown))
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: no reason to end
            print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def installed(self) -> Any:
        """While entered, the words of `LOGGERS` are lines of this log, tracebacks in one line of their own."""
        handler = _Handler(self)
        loggers = [logging.getLogger(name) for name in LOGGERS]
        before = [(logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
            logger.setLevel(max(self._level, LOGGERS[logger.name]))
        try:
            yield
        finally:
            for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(level)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg in _SAID_BETTER:
            return
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._log.write(record.levelno, "log", record.getMessage(), fields)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return (
        json.dumps(text) if isinstance(value, str) and (" " in text or "\n" in text or not text.isprintable()) else text
    )
