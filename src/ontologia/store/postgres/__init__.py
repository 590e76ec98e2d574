"""The store on PostgreSQL. Its files have the names of their twins in `store.sqlite`."""
