"""Questions as SQL: what is the same on every backend. Each fills in its own way of saying it."""
