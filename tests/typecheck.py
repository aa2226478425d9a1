"""The run-time type checker of the test session."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is good where a float is wanted
