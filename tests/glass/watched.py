"""A page under a test, and what it complained of and asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

AXE = Path(__file__).parent / "vendor" / "axe.min.js"


class Watched:
    """A page, and what it must not have done."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-US", **options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("websocket", lambda socket: self.addresses.append(socket.url))

    def open(self, url: str) -> Any:
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready]", timeout=30_000)
        return self.page

    def strangers(self, url: str) -> list[str]:
        """Addresses outside the server that it asked for."""
        own = (url, url.replace("http", "ws", 1), "data:", f"blob:{url}")
        return [one for one in self.addresses if not one.startswith(own)]

    def violations(self) -> list[str]:
        """What axe-core finds; it is put in past the page's policy, which lets nobody in."""
        found = self.context.new_cdp_session(self.page).send(
            "Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8") + ";0", "silent": False}
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        result = self.page.evaluate("() => axe.run(document)")
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary'][:300]}"
            for one in result["violations"]
        ]


def settle(page: Any) -> None:
    """Until panels off the screen have followed."""
    page.wait_for_function("() => document.querySelector('pl-page').panels.every((one) => !one.isDirty)")
