"""Importing and exporting checkpoints of other libraries.

`folder` loads and saves Hugging Face folders, `exporters` write ONNX, CTranslate2 and GGUF,
`transfer` moves weights to a model with different parts.
"""
