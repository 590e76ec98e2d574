"""Where state is kept. `protocol` says what a store promises, `open` chooses one by its URI."""
