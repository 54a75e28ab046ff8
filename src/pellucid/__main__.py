"""`python -m pellucid` is the same as `pellucid`."""

from __future__ import annotations

from pellucid.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
