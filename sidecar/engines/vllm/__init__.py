"""The driver of vLLM, over its HTTP interface and through our plugin."""
