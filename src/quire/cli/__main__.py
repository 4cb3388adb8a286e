"""``python -m quire.cli``: the same as the ``quire`` command, for this interpreter."""

from quire.cli import main

if __name__ == "__main__":
    main()
