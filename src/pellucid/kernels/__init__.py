"""The mathematics of a decoder, twice: once to read, once to run.

- `backend.py`: the protocol: the short list of operations a decoder needs, with shapes
- `reference.py`: each operation in NumPy float32; the definition
- `native.py`: the compiled twin (csrc/); the only file that knows that C++ exists
- `dispatch.py`: which backend and which instruction set
- `deep_stack.py`: work on a stack of its own size

All operations write into arrays they are given, so that a step allocates nothing twice.
"""
