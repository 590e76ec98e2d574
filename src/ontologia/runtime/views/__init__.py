"""What an operator is shown: functions that read a store and return dataclasses.

The command line and the web console render the same ones. Each takes a session, changes nothing and
states its cost. Lists come in pages with a cursor, counts end at a bound (`10,000+`), and what walks
through history or log ends at a deadline and says how far it came.

`overview`      what waits and what failed, per handler
`events`        events, the newest first, and everything about one
`past`          the overview, events and one event as they were at a commit or a time
`dead_letters`  dead letters, listed and grouped by failure
`handlers`      consumers, with what waits for each
`sessions`      processes that use the store
`audit`         what operators did
`later`         deferred events and schedules
`objects`       types, objects, and what set each field of one
`commits`       commits, and what one of them changed
`attempts`      what an attempt saw, what it wrote, and who wrote in between
`graph`         what came of an event, as a forest
`why`           why an object is as it is, by the name of its type
`store`         the database, its namespaces, relays and intakes
`times`         times as people type them
`reading`       a session that only reads
`search`        what an id is the id of
"""
