"""On PostgreSQL: the same promises, beside a bare loop.

One server that syncs to the disk, with its default settings otherwise, and a database of its own
for every contender and round; TMPDIR does not matter here, the cluster is in /tmp. The server has
the same cores as its clients, so what a client spends is taken from the server, too.

What is compared is not the same promise. Ours keeps every event with its attempts, fences each
attempt, and hands an event to any number of consumers. What its loop does for itself is soft: a
power cut can lose the last acknowledgements, and their events are handled again. Bare waits
for the disk with each of its transactions.
"""
