"""The strategy in force: loaded, tried, exchanged and watched."""
