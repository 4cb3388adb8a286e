"""Makes ``control_world`` and the other helpers here importable from the folders below."""
