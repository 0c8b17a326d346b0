"""The control plane: the MetaStore, the catalog on top of it, and the loops that act."""
