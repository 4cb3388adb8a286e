"""Vector stores that keep their rows outside this process's memory."""
