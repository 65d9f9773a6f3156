"""Hidden-state shards: planned, written whole, checked, read by random access."""
