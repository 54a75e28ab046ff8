"""Figures against peers and against the machine's own limits; nothing here is part of the engine.

python -m benchmarks.run            everything below in one run: limits, peers in turn, tables, a chart, JSON
  machine.py + probe.c              what this machine is and can do: read bandwidth, products per second
  scenarios.py                      what is measured, with which token ids
  peers/                            the engines: one folder each, with its pinned packages and its worker
  environments.py                   a virtual environment for each peer
  processor.py models.py            what the processor is; what one token of a model costs
  workers.py command_line.py        a worker process, and `pellucid generate`, as seen from here
  measuring.py                      rounds in turn (A B A B …), time budgets, what could not be measured
  results.py                        figures → medians, spreads, ratios; saved as JSON
  tables.py charts.py               results → markdown, results → SVG

python benchmarks/startup.py        help, first token and peak memory of the command line
python benchmarks/fidelity.py       KL per KV type against the golden logits
python benchmarks/header.py         how long a GGUF header takes to read
python benchmarks/sampling.py       microseconds per sampled token
"""
