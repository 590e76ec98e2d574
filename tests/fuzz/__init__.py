"""Bad input, everywhere it enters: what comes of it is an answer or an error that is documented.

`targets` has one function for each entrance, which takes bytes and raises if something else came of
them. The tests here draw what hypothesis thinks of, CI the same each time; `ONTOLOGIA_TEST_SAMPLES=10`
draws ten times as much. `python -m tests.fuzz` has atheris draw, guided by which lines of the
package were reached. What was found once is kept in `corpus/`, and tried in every run.
"""
