"""The store on SQLite: the embedded default."""
