"""A web service on plain ASGI whose state and events are in Ontologia."""
