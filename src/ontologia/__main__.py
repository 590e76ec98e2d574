"""`python -m ontologia` is the command `ontologia`."""

from ontologia.cli.start import main

if __name__ == "__main__":
    main()
