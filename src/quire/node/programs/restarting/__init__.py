"""Programs that outlive an engine or this node: their records and their moves."""
