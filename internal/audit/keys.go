package audit

// ReadCheckpoint reads a signed checkpoint strictly, without regard to who
// signed it.
func ReadCheckpoint(signed []byte) (Checkpoint, error) { return readCheckpoint(signed) }
