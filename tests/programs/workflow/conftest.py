"""Makes the modules of this folder that no test is (``workflow_apps`` and others) importable by the
tests in the folders below."""
