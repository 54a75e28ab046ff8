"""ik_llama.cpp through ik-llama-cpp-python, whose package is compiled for AVX2."""
