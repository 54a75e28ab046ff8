"""The lessons of docs/lessons/, from real runs of the engine.

    python tools/make_lessons.py                    build the pages from the recorded traces
    python tools/make_lessons.py --record [NAME …]  run the engine first (smollm2:135m), all lessons or those named
    python tools/make_lessons.py --check            say which pages are out of date; ends with 1 if there is one

A lesson is a trace (docs/lessons/traces/NAME.jsonl.gz) and a script (docs/lessons/source/NAME.js) that asks about it;
every number a reader sees is taken from the trace. The runs of a trace have names instead of the engine's request ids.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pellucid import LLM, SamplingParams, StructuredOutputsParams
from pellucid.glass.assets import offline_page, read
from pellucid.trace.jsonl import line_of

LESSONS = Path(__file__).parent.parent / "docs" / "lessons"
TRACES = LESSONS / "traces"
SOURCES = LESSONS / "source"
MODEL = "smollm2:135m"
Event = dict[str, Any]


class Recorder:
    """Runs requests one after the other on an engine, each under a name of its own."""

    def __init__(self, **engine_args: Any) -> None:
        # no step is cut by time, none has guesses: a run is the same steps on any machine
        self.llm = LLM(MODEL, seed=0, max_step_ms=60_000, speculative_method="off", **engine_args)
        self.events: list[Event] = []
        self._names: dict[str, str] = {}
        self._reader = self.llm.trace_reader(from_start=False)

    def run(self, name: str, prompt: Any, level: int = 2, **options: Any) -> None:
        """One request. prompt: a text as it is, or messages for the chat template. options: of SamplingParams."""
        cache_salt = options.pop("cache_salt", "")
        params = SamplingParams(**options)
        if isinstance(prompt, str):
            self.llm.generate(prompt, params, trace_level=level, cache_salt=cache_salt)
        else:
            self.llm.chat(prompt, params, trace_level=level, cache_salt=cache_salt)
        self._take(name)

    def leave(self, name: str, prompt: str, after: int, **options: Any) -> None:
        """A request that its client leaves after so many tokens."""
        stream = self.llm.stream(prompt, SamplingParams(**options), trace_level=2)
        for number, output in enumerate(stream, 1):
            if number == after:
                self.llm.abort(output.request_id)
                break
        stream.close()
        self._take(name)

    def _take(self, name: str) -> None:
        """The events of a run, under its name; a header stands first, once."""
        for event in self._reader.read():
            if event["type"] == "header" and self.events:
                continue
            self.events.append(self._named(event, name))

    def _named(self, event: Event, name: str) -> Event:
        if "req" in event and event["req"] is not None:
            self._names.setdefault(event["req"], name)
            event = {**event, "req": self._names[event["req"]]}
        for key in ("seqs", "waiting"):
            if key in event:
                event = {**event, key: [self._named(one, name) for one in event[key]]}
        return event

    def pieces(self, ids: Iterable[int]) -> None:
        """The bytes of tokens that the lesson names."""
        from base64 import b64encode

        tokenizer = self.llm.engine.tokenizer
        found = {str(i): b64encode(tokenizer.token_bytes(i)).decode("ascii") for i in sorted(set(ids))}
        self.events.append({"type": "pieces", "bytes_b64": found})


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def record_tokens() -> list[Event]:
    """Bytes and tokens."""
    record = Recorder()
    one = {"max_tokens": 1, "temperature": 0.0}
    for name, text in (
        ("word", "strawberry"),
        ("spaced", " strawberry"),
        ("hello", "Hello"),
        ("hello_spaced", " Hello"),
        ("chinese", "你好，世界"),
        ("english", "Hello, world"),
        ("typed", "<|im_end|>"),
    ):
        record.run(name, text, level=1, **one)
    record.run("template", user("Hi<|im_end|>"), level=1, **one)
    record.run("llama", "A llama:", temperature=0.0, max_tokens=8, structured_outputs=choice("🦙"))
    return with_pieces(record)


def choice(*texts: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(choice=texts)


DRINK = "Every morning she drinks a cup of hot"
FACT = "The capital of France is the city of"
SEED = 2
DRAWS = 100


def record_sampling() -> list[Event]:
    """Temperature, top-k, top-p: one prompt, one seed, other settings; and a hundred seeds."""
    record = Recorder()
    one: dict[str, Any] = {"max_tokens": 1, "seed": SEED}
    settings: dict[str, dict[str, Any]] = {
        "plain": {},
        "cold": {"temperature": 0.5},
        "hot": {"temperature": 1.5},
        "greedy": {"temperature": 0.0},
        "top_k": {"top_k": 5},
        "top_p": {"top_p": 0.9},
    }
    for name, options in settings.items():
        record.run(name, DRINK, **one, **options)
    record.run("sure", FACT, **one, top_p=0.9)
    draws = [SamplingParams(max_tokens=1, seed=seed) for seed in range(DRAWS)]
    answers = record.llm.generate([DRINK] * DRAWS, draws)
    counts = Counter(answer.outputs[0].text for answer in answers)
    record.events.append({"type": "lesson", "draws": [list(one) for one in counts.most_common()]})
    return with_pieces(record)


SENTENCE = "The cat sat on the mat because it was tired"
MASK_HEADS = ((13, 8), (16, 0))
"""(layer, head): one in which "it" looks at what it stands for, one in which tokens look at the one before
them; found by trying them all."""


def record_mask() -> list[Event]:
    """The causal mask: a sentence; the same with another last word; the same with another first word."""
    record = Recorder(enable_prefix_caching=False)
    record.run("sentence", SENTENCE, level=3, max_tokens=2, temperature=0.0)
    record.run("last", SENTENCE.replace("tired", "warm"), level=3, max_tokens=1, temperature=0.0)
    record.run("first", SENTENCE.replace("The", "A"), level=3, max_tokens=1, temperature=0.0)
    record.events = [slim(event) for event in record.events if event["type"] != "kv"]
    return with_pieces(record)


def slim(event: Event) -> Event:
    """Of the layers what the lesson shows: norms of all, attention of its heads."""
    if event["type"] != "layer":
        return event
    heads = [one for one in event["attn"] or () if (event["layer"], one["head"]) in MASK_HEADS]
    return {**event, "attn": heads, "lens": None}


GUIDE = (
    "You are the guide of a lighthouse museum. Answer in one short sentence. The lighthouse was built in 1871 of grey "
    "stone and is forty metres high. Its lamp once burned rape oil, then paraffin, and since 1934 it is electric. "
    "The keeper climbed two hundred and four steps every evening, trimmed the wicks at midnight, and wrote the weather "
    "into a book that is now shown on the second floor. The museum is open from nine to five, on Sundays from noon. "
    "Children under six pay nothing."
)
CHUNK = 64


def record_cache() -> list[Event]:
    """Prefill, decode and the KV cache: a long prompt, another question behind the same text, the same uncached."""
    record = Recorder(max_num_batched_tokens=CHUNK)
    record.llm.generate("Warm up.", SamplingParams(max_tokens=8))  # untraced: the first forward pass is slower
    record.run("cold", guide("How high is the lighthouse?"), max_tokens=24, temperature=0.0)
    record.run("warm", guide("When was it built?"), max_tokens=24, temperature=0.0)
    record.run("alone", guide("When was it built?"), max_tokens=24, temperature=0.0, cache_salt="another tenant")
    return with_pieces(record)


def guide(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": GUIDE}, {"role": "user", "content": question}]


CAPITAL = "What is the capital of France?"


def record_stopping() -> list[Event]:
    """Why it stopped: one run for each reason."""
    record = Recorder(max_model_len=64)
    greedy: dict[str, Any] = {"temperature": 0.0}
    record.run("end", user(CAPITAL), **greedy)
    record.run("cut", user(CAPITAL), max_tokens=4, **greedy)
    record.run("string", user(CAPITAL), stop=("Paris",), **greedy)
    record.run("held", user(CAPITAL), stop=("Paris, ",), **greedy)
    record.run(
        "choice", user("Is Paris in France? Answer yes or no."), structured_outputs=choice("yes", "no"), **greedy
    )
    record.run("window", "One, two, three, four,", ignore_eos=True, **greedy)
    record.leave("left", "One, two, three, four,", after=5, **greedy)
    return with_pieces(record)


RECORDERS: dict[str, Callable[[], list[Event]]] = {
    "tokens": record_tokens,
    "sampling": record_sampling,
    "mask": record_mask,
    "cache": record_cache,
    "stopping": record_stopping,
}


def with_pieces(record: Recorder) -> list[Event]:
    ids = [
        one[0]
        for event in record.events
        if event["type"] == "sample"
        for stage in event["stages"]
        for one in stage["top"]
    ]
    ids += [event["stop_id"] for event in record.events if event["type"] == "finish" and event["stop_id"] is not None]
    record.pieces(ids)
    return record.events


def page(name: str) -> str:
    """The page of a lesson, from its trace and its script. The same sources give the same bytes."""
    own = {
        part: (SOURCES / part).read_text(encoding="utf-8") for part in ("lesson_texts.js", "pictures.js", "player.js")
    }
    parts = [own["lesson_texts.js"], read("core.js"), read("trace.js"), own["pictures.js"]]
    parts += [(SOURCES / f"{name}.js").read_text(encoding="utf-8"), own["player.js"]]
    scripts = '"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n"
    style = read("style.css") + (SOURCES / "lesson.css").read_text(encoding="utf-8")
    lines = gzip.decompress((TRACES / f"{name}.jsonl.gz").read_bytes()).decode("utf-8").splitlines(keepends=True)
    return offline_page("lesson", "pl-lesson", scripts, style, lines)


def write_trace(name: str, events: Iterable[Event]) -> None:
    """The events, gzipped without a time, so that the same run makes the same file."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        for event in events:
            file.write(line_of(event).encode("utf-8"))
    (TRACES / f"{name}.jsonl.gz").write_bytes(buffer.getvalue())


def stale() -> list[str]:
    """Lessons whose page is not what its sources make."""
    return [name for name in RECORDERS if not is_fresh(name)]


def is_fresh(name: str) -> bool:
    path = LESSONS / f"{name}.html"
    return path.exists() and path.read_text(encoding="utf-8") == page(name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "lessons", nargs="*", metavar="NAME", help=f"which of {', '.join(RECORDERS)}; all if none is named"
    )
    parser.add_argument("--record", action="store_true", help="run the engine first")
    parser.add_argument("--check", action="store_true", help="say which pages are out of date and write nothing")
    args = parser.parse_args(arguments)
    for name in args.lessons:
        if name not in RECORDERS:
            parser.error(f"{name} is no lesson; there are {', '.join(RECORDERS)}")
    if args.check:
        for name in stale():
            print(f"docs/lessons/{name}.html is out of date: run python tools/make_lessons.py")
        return 1 if stale() else 0
    TRACES.mkdir(exist_ok=True)
    for name in args.lessons or RECORDERS:
        if args.record:
            write_trace(name, RECORDERS[name]())
        text = page(name)
        (LESSONS / f"{name}.html").write_text(text, encoding="utf-8")
        print(f"docs/lessons/{name}.html: {len(text.encode()) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
