"""What every layer shares: ids, errors, configuration, messages, and the Protocols between layers.

Imports nothing else of Quire and no torch. Where to read: ``calls`` and ``commands`` (the requests
of programs), ``events`` and ``actions`` (the controller's input and output), ``engine_info`` (what
an engine is), ``batch`` (what it executes) and ``batch_result`` (what it answers), ``interfaces``
(the Protocols). ``interpreter``, ``event_loops`` and ``executable_cache`` hold process-level code
that several layers need.
"""
