"""Simulated vLLM: the HTTP contract of vLLM 0.32 without a model.

For machines without room for the real one, and for benches and tests with many replicas. One and the same contract
suite runs against it and against real vLLM.
"""
