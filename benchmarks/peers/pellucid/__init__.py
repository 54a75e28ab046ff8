"""Pellucid itself, through LLMEngine.step: the environment that runs the benchmark has it."""
