"""The wire contract: ``sdrs.v1``, and what both ends of it share.

``v1/`` holds the .proto files with their generated code; ``services`` makes stubs and handlers of them, ``framing`` and
``channel`` carry bulk bytes, ``status`` turns errors into gRPC status and back, ``convert`` turns messages into core
values.
"""
