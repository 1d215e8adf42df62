"""What a LoRA adapter is: its digest, its two files, whether it is right for a base, and how it is made right. Pure."""
