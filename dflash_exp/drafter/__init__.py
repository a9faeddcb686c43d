"""The drafter: anchors, model, block attention, loss, one optimizer step; sees messages and itself only."""
