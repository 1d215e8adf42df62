"""What LoraPlane costs, always beside a floor that is measured in the same run. `make bench [ONLY=name]`."""
