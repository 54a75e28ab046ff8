"""What lies on disk: readers and writers of model files, and the block types their weights are stored in.

- `block_types`: the table of GGML tensor types: name, id, elements and bytes of one block.
- `gguf`: the memory-mapped GGUF reader; it knows the container, not what the keys mean.
- `dequantize`: blocks to float32, the readable reference of every served type.
- `quantize`: float32 to blocks, for the types that have a simple rule.
- `gguf_writer`: metadata and tensors to a GGUF file.

Nothing here knows about models: names of keys and tensors are plain strings.
"""
