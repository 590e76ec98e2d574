"""A unit of work, and the session that makes them."""
