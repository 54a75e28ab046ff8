"""The tracer: what a step did for the requests that asked to be traced. Nothing of it is imported before one asks.

- `tracer.py`: EngineTracer, which takes the engine's place in a step: notes times, and what the others noted.
- `watchers.py`: the model, sampler, answer and KV cache as the traced step sees them; each tells the tracer and does
  what the one that it stands for does.
- `layers.py`: level 3: norms of every row, attention weights and logit lens of chosen ones.
- `request_trace.py`: one traced request: its level, its times, the parts of its TTFT.
- `records.py`: what goes into the ring; events are made of it by whoever reads.
- `blocks.py`: what happens to KV blocks, and the names of what is in them. `memory.py`: the process's memory.
- `header.py`: the first event: model, tokenizer, engine.
"""
