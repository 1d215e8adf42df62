"""The gRPC methods of the admin service and what stands before them."""
