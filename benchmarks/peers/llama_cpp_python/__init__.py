"""llama.cpp through llama-cpp-python, compiled for this machine."""
