"""A folder of texts, kept searchable: a schedule, an event for each document, several workers."""
