"""An assistant that reminds you, made of extensions that know nothing of each other."""
