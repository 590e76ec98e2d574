"""The goals: ratios of Ontologia to a bare loop in the same run, and how great they may be.

A module has `figures()`, or `figures(folder)` for what lies in stores of its own. That ours and bare
give the same answer is checked first.
"""
