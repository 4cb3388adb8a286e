"""Which programs run at all when their working sets together have no room: admission by program."""
