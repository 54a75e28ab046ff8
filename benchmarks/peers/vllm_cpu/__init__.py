"""vLLM's CPU build in bfloat16, from the dequantised GGUF file."""
