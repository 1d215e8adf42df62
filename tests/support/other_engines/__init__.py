"""Simulated servers of the documented contracts of engines other than vLLM."""
