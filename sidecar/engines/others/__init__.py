"""Drivers of SGLang, pegainfer and axolotl."""
