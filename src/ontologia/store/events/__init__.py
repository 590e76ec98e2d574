"""The event store, the same for every database: the statements are the backend's."""
