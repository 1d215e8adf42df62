"""What the real engine applies of adapters, by architecture: tiny models, PEFT's adapters, PEFT's answers."""
