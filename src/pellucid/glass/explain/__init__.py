"""A trace in the terminal, from the first character to the reason why it stopped. Renders from events alone.

- `sections.py`: `explain`, the sections in the order of the journey.
- `text_section.py`: prompt, tokens, positions.
- `layer_section.py`: norms as a row of heat, logit lens, attention.
- `sampling_section.py`: the stages of every token drawn.
- `engine_section.py`: what came out and why it stopped, where the time went, KV blocks, memory.
- `drawing.py`: bars, rows of heat, tokens as chips. Colour is never alone: every picture has its numbers.
"""
