"""``make docs``: writes the generated pages of ``docs/`` from the source that they describe.

Each module makes one page; a test compares the page with what its module makes now.
"""
