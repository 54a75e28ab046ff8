"""The memory of the past: keys and values of computed tokens, in blocks of 16.

- `storage.py`: the arrays themselves, one pair per layer; the only file here that knows NumPy.
- `block_pool.py`: which blocks are free and who shares the others; ints only.
- `radix_cache.py`: which computed blocks are kept for later, found again by the tokens they hold; ints only.
- `manager.py`: the block table of every request: grow, share a prefix, free; ints only.
- `saved.py`: the cached blocks in a file, so that they outlive the process.
- `sizing.py`: how many blocks there are, from the memory budget and the bytes one token takes.
"""
