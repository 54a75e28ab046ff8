"""Bytes of tokens as text that may be shown anywhere: nothing in it moves a cursor, hides or turns other text round."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Hashable, Sequence

_NAMES = {"\n": "↵", "\r": "␍", "\t": "⇥"}


def piece_text(data: bytes, *, spaces: bool = True) -> str:
    """The token's characters; `·` for a space (unless `spaces` is off), escapes for what is invisible or no UTF-8."""
    text = ""
    for character in data.decode("utf-8", "backslashreplace"):
        text += _shown(character, spaces)
    return text


def plain_text(text: str) -> str:
    """A text with its line breaks and spaces, everything else as `piece_text`."""
    return "".join(character if character in "\n " else _shown(character, False) for character in text)


def decoded(text: str) -> bytes:
    """The bytes of a `bytes_b64` field."""
    return b64decode(text)


def hexadecimal(data: bytes, most: int = 12) -> str:
    """`e4 bd a0`; what is longer ends with …"""
    return data[:most].hex(" ") + (" …" if len(data) > most else "")


def _shown(character: str, spaces: bool) -> str:
    if character in _NAMES:
        return _NAMES[character]
    if character == " ":
        return "·" if spaces else " "
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def common_prefix(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """How many tokens, bytes or characters two texts have in common before they part."""
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same
