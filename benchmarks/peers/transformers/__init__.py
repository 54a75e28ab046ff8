"""Hugging Face transformers in bfloat16 on PyTorch, from the dequantised GGUF file."""
