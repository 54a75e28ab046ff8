"""One small declarative file for each family, over the one decoder.

A file states what is the family's own: the keys of its metadata, its tensors' names and the switches of
`ModelConfig`: `llama.py`, `gemma3.py`. `base.py` has what they share, `registry.py` finds the file for a name.
"""
