"""An answer that is printed while it is made, and ended by Ctrl-C where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid.cli import console
from pellucid.outputs import FinishReason, RequestOutput

if TYPE_CHECKING:
    from pellucid.engine.request_stream import RequestStream


class Streamed:
    """Prints the deltas of one answer and keeps what was said."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self._pieces: list[str] = []
        self.num_tokens = 0
        self.last: RequestOutput | None = None
        self.interrupted = False

    def show(self) -> None:
        """Print until the answer ends or Ctrl-C is pressed; the engine lets that through only between two steps."""
        try:
            for output in self._stream:
                self.last = output
                self._pieces.append(output.outputs[0].text)
                self.num_tokens += len(output.outputs[0].token_ids)
                console.write(output.outputs[0].text)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._stream.close()  # aborts the request if it still runs
        console.write("\n")

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self._pieces)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None when it was stopped."""
        return None if self.last is None else self.last.outputs[0].finish_reason
