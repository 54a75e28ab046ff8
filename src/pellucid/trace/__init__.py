"""What happened: the protocols through which the engine can be watched. Plain data, imported by anyone.

- `probe.py`: named tensors of a forward pass, for whoever asks for them.
"""
