"""What every layer shares: ids, errors, configuration, messages, the Protocols between layers.

Imports nothing else of Quire and no torch. Read ``commands`` (what programs ask for), ``events``
and ``actions`` (the controller's input and output), ``engine_info`` and ``batch`` (what an engine
is and what it executes), ``interfaces``. Beside them stands what processes of several layers need
alike: ``interpreter``, ``event_loops``, ``executable_cache``.
"""
