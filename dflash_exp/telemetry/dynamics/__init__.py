"""What moves the loss, judged as the run goes: composition, jumps, whiplash."""
