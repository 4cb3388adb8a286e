"""Makes ``control_world`` importable from the folders below."""
