"""The command line `loraplane`: a client of the admin service."""
