"""The edges: gRPC services and their clients, and the data channel's sockets. Messages stop here."""
