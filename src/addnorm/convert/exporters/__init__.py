"""Exporters to other runtimes: ONNX, CTranslate2 and GGUF."""
