"""Fuzzer: valid samples of whatever strangers can write or send, hurt, and what may not happen then."""
