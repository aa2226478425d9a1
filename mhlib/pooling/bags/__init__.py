"""Multiple-instance pooling: a bag's label from its instances."""
