"""The web console of a store."""
