"""Generated text → what a client reads: reasoning, content and tool calls, piece by piece.

events.py        the three, as deltas
marks.py         marks found across pieces of text, and the white space around them
reasoning.py     <think> … </think>; the table of --reasoning-parser
json_call.py     {"name": …, "arguments": {…}} read while it is written
tool_calls.py    calls between marks, one JSON object each or a list of them
xml_calls.py     calls as <function=…><parameter=…>
families.py      which models write what; the table of --tool-call-parser
choice.py        reasoning first, then content and calls

A parser's events do not depend on how the text falls into pieces: a whole answer goes in as one, a stream as many.
"""
