"""The OpenAI-compatible HTTP server. Imported only when something is served.

settings.py     what an operator may choose; the flags of `pellucid serve` are made from it
fields.py       every field a request may have: those of SamplingParams, OpenAI's, and what each unserved one may be
parsing.py      a JSON body → what is asked for; the field at fault is named (checks.py, messages.py, tools.py)
chat_format.py  what a model's chat template can do, and how its answers are read (tool_prompt.py)
answer_grammar.py  what an answer must be where calls or a shape are asked for, with reasoning before them
output/         generated text → content, reasoning and tool calls
response_format.py  the shape an answer must have, from response_format or structured_outputs
routes.py       the endpoints
prefill.py      filling the prefix cache ahead of a request
type_ahead.py   the same over a WebSocket, for text that is still being typed
answers.py      outputs → the bodies and chunks of OpenAI's API (chat_answers.py, completion_answers.py)
responses/      /v1/responses
delivery.py     whole answers and event streams; a client that leaves ends its request
outlet.py       the short way of a stream's pieces to the connection (protocols.py)
gate.py         around every request: its id, the API key, the access log
sockets.py      the same around every WebSocket, and how one ends
api_errors.py   every failure in OpenAI's shape
wire.py         JSON in and out, with its limits
metrics.py      what Prometheus reads
app.py          all of it as one application
running.py      the process: socket, signals, draining
"""
