"""The demonstration: the main job on a local stack, each step checked."""
