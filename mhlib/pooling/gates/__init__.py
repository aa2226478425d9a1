"""Gates over maps: attention that weighs every place and pools nothing."""
