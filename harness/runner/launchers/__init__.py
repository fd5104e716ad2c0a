"""Start worker processes: on this host or on a cluster, with one interface; they do not know what workers run."""
