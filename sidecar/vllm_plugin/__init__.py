"""The plugin inside vLLM: atomic swaps, and proof that files are free.

It is imported there with nothing but the standard library and what vLLM brings, does nothing unless
``LORAPLANE_PLUGIN=1``, and declines with one line in the log where vLLM is not as it was read.
"""
