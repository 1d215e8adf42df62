"""The command line `loraplane`: a gRPC client of the admin service for people and scripts."""
