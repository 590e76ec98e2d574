"""What can be said: fields, entities, relations, and the data that describes them. No I/O."""
