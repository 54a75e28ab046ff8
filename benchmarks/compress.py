"""What the overflow policies keep of a long text: facts asked for, and how well the whole is still predicted.

    python benchmarks/compress.py [--model smollm2:135m] [--runs 6] [--tokens 3000] [--context 1024]

Needle: a sentence with a code is put somewhere into a long text, which is then asked for; counted are the prompts
that still have the code, and the logprob of the right answer given the shortened prompt, in nats a token. Summary: a
passage of facts is spread over the text; measured is the logprob of those facts' sentences when the shortened text
stands before them, against no text at all: how much of the whole the shortened text tells. The text is
drawn anew for each run. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path

from pellucid.engine.llm import LLM
from pellucid.engine.overflow import SCORING, fit_prompt, given_logprobs
from pellucid.sampling_params import SamplingParams

POLICIES = ("truncate_left", "truncate_right", "truncate_middle", "compress")
ANSWER_TOKENS = 24
NAMES = ("Mara", "Oswin", "Tilda", "Ibrahim", "Yuki", "Pavel", "Noor", "Sigrid")
PLACES = ("harbour", "library", "mill", "observatory", "bakery", "tower", "garden", "station")
THINGS = ("copper", "tea", "maps", "clocks", "violins", "paper", "glass", "seeds")


def filler(draw: random.Random, source: list[str], num_sentences: int) -> list[str]:
    """Sentences of a real text in a new order."""
    return [draw.choice(source) for _ in range(num_sentences)]


def sentences_of(path: Path) -> list[str]:
    """A text's sentences."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    return [f"{part.strip()}." for part in text.split(".") if len(part.split()) > 4]


def facts(draw: random.Random, count: int) -> list[str]:
    """Sentences that nothing else in the text tells."""
    return [
        f"{draw.choice(NAMES)} keeps {draw.randrange(12, 99)} boxes of {draw.choice(THINGS)} in the "
        f"{draw.choice(PLACES)}."
        for _ in range(count)
    ]


def answer_logprob(llm: LLM, prompt: list[int], answer: list[int]) -> float:
    """Mean logprob of the answer's tokens after the prompt, in nats."""
    output = llm.generate(prompt + answer, SamplingParams(max_tokens=1, prompt_logprobs=0))[0]
    rows = (output.prompt_logprobs or [])[-len(answer) :]
    return statistics.mean(row[i].logprob for i, row in zip(answer, rows, strict=True) if row is not None)


def shortened(llm: LLM, text: str, policy: str) -> list[int]:
    """The ids that the model would read of a prompt that does not fit."""
    params = SamplingParams(overflow=policy, max_tokens=ANSWER_TOKENS * 6)  # type: ignore[arg-type]
    fitting = fit_prompt(llm.tokenizer.encode(text), text, params, llm.tokenizer, llm.max_model_len)
    try:
        windows = next(fitting)
        while True:
            outputs = llm.generate(windows, SCORING)
            windows = fitting.send([given_logprobs(output) for output in outputs])
    except StopIteration as done:
        return list(done.value.token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=3000, help="tokens of the long text, about")
    parser.add_argument("--context", type=int, default=1024, help="max_model_len")
    parser.add_argument("--source", type=Path, required=True, help="a text file whose sentences are the filler")
    args = parser.parse_args()
    draw = random.Random(0)
    source = sentences_of(args.source)
    result: dict[str, dict[str, float]] = {}
    with LLM(model=args.model, max_model_len=args.context) as llm:
        encode = llm.tokenizer.encode
        found: dict[str, list[bool]] = {policy: [] for policy in POLICIES}
        needle: dict[str, list[float]] = {policy: [] for policy in (*POLICIES, "nothing")}
        summary: dict[str, list[float]] = {policy: [] for policy in (*POLICIES, "nothing")}
        for number in range(args.runs):
            body = filler(draw, source, args.tokens // 20)
            code = str(draw.randrange(1000, 9999))
            told = [*body]
            told.insert(int(len(told) * (number + 0.5) / args.runs), f"The code of the blue door is {code}.")
            known = facts(draw, 5)
            for place, fact in enumerate(known):
                body.insert(int(len(body) * (place + 0.5) / len(known)), fact)
            question = " The code of the blue door is"
            answers, told_again = (
                encode(f" {code}.", add_special_tokens=False),
                encode(" In short: " + " ".join(known), add_special_tokens=False),
            )
            for policy in POLICIES:
                ids = shortened(llm, " ".join(told) + question, policy)
                found[policy].append(code in llm.tokenizer.decode(ids))
                needle[policy].append(answer_logprob(llm, ids, answers))
                ids = shortened(llm, " ".join(body), policy)
                summary[policy].append(answer_logprob(llm, ids, told_again))
            needle["nothing"].append(answer_logprob(llm, encode(question), answers))
            summary["nothing"].append(answer_logprob(llm, encode("."), told_again))
    print(f"{'policy':16} {'code kept':>10} {'answer':>8} {'facts':>8}   (logprobs, nats a token)")
    for policy in (*POLICIES, "nothing"):
        kept = f"{sum(found[policy])}/{args.runs}" if policy in found else "–"
        result[policy] = {
            "code_kept": sum(found.get(policy, [])),
            "answer_logprob": round(statistics.mean(needle[policy]), 3),
            "facts_logprob": round(statistics.mean(summary[policy]), 3),
        }
        row = result[policy]
        print(f"{policy:16} {kept:>10} {row['answer_logprob']:8.2f} {row['facts_logprob']:8.2f}")
    print(json.dumps({"bench": "compress", "model": args.model, "context": args.context, "runs": args.runs, **result}))


if __name__ == "__main__":
    main()
