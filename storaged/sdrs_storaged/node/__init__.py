"""The node role: who this node is, its link to the controller, and the transfers it takes part in."""
