package client

// SetStopPoint has f called at every point of an effect's way, which may end or
// hold the process.
func SetStopPoint(f func(point, operationID string)) { stopPoint = f }

// Unreported lists the effects whose reports are not acknowledged.
func (s *EffectStore) Unreported() []string { return s.unreported() }
