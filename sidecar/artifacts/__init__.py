"""From a record's source to an immutable directory that an engine may read."""
