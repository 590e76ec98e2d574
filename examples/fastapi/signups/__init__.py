"""A web service with FastAPI whose state and events are in Ontologia."""
