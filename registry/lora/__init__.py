"""LoRA adapters: digest, files, check against a base, preparation. Pure."""
