"""What the long-running processes share: settings, a command line made from them, logs, an end with a reason."""
