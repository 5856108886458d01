"""Fitting the heads of `taps`, `speckv` and `specdec-plus-plus` on traces: `python -m talon_strategies.fitting`."""
