"""A bounded run of real processes under faults, whose history is checked afterwards."""
