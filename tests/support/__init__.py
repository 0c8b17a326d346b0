"""What tests stand on: real clusters, and waiting for conditions."""
