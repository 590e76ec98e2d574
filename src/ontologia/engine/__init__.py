"""The engine: claims events for consumers, runs them, and writes how each attempt ended."""
