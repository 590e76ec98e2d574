"""The command line: `ontologia`, or `python -m ontologia`. One command, one module."""
