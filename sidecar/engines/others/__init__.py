"""Drivers of SGLang, pegainfer, Dynamo and axolotl."""
