"""How a command ends; 0 is done."""

from __future__ import annotations

from typing import Final

EXIT_REQUEST_FAILED: Final = 1
"""An answer failed after work had begun."""
EXIT_FINDINGS: Final = 1
"""`doctor` found something that is a warning or an error."""
EXIT_BAD_INPUT: Final = 2
"""Bad input, or a file, model or machine that cannot be used."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C; the shell's number for it."""
EXIT_BROKEN_PIPE: Final = 141
"""The reader of our output went away; the shell's number for it."""
