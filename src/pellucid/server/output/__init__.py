"""Generated text → what a client reads: reasoning, content and tool calls, piece by piece.

events.py        the three, as deltas
marks.py         marks found across pieces of text, and the white space around them
reasoning.py     <think> … </think>; the table of --reasoning-parser
call_readers.py  one call, read while it is written, in each of the forms that models use
harmony.py       OpenAI's harmony format, which is all three in one
tool_calls.py    calls between marks, one or a list of them
families.py      which models write what; the table of --tool-call-parser
choice.py        reasoning first, then content and calls
token_logprobs.py  which tokens a piece was made of

A parser's events do not depend on how the text falls into pieces: a whole answer goes in as one, a stream as many.
"""
