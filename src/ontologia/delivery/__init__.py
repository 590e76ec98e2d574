"""The rules of delivery, as pure functions: no database, no clock, no threads."""
