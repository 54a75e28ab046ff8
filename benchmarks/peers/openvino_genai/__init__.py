"""OpenVINO GenAI, which reads GGUF files of some architectures and types itself."""
