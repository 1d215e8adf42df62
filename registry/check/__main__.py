"""``python -m registry.check``."""

from registry.check.main import main

main()
