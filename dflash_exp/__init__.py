"""How batches reach a DFlash drafter, as a controlled experiment."""
