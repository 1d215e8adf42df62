"""Commands of `loraplane`, one module a group."""
