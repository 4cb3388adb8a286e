"""``make mutate``: measures whether the tests notice one-line faults in Quire."""
