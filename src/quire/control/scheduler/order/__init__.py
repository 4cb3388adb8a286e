"""In which order work goes: tenants' shares, then priority and policy."""
