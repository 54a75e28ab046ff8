"""ids → logits: one decoder, built from what a model file says about itself.

- `decoder.py`: the forward pass, the same for every family
- `rotary.py`: the angles of the rotary positions
- `architectures/`: a small declarative file for each family: how its file maps to a `ModelConfig` and to tensors
- `loading.py`: file → config → packed weights → `Decoder`
"""
