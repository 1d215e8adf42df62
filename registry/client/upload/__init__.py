"""Files that are put where replicas can read them before they are published."""
