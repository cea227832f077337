"""Import and export of checkpoints of other libraries.

`folder` loads and saves Hugging Face folders, `exporters` write ONNX, CTranslate2 and GGUF,
`transfer` carries weights over to a model with other parts.
"""
