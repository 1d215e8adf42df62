"""The doctor: looks at every part of an installation and says what to do."""
