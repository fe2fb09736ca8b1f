package outbox

// WithoutMemory makes the relay forget holes: what it reads, it reads in the order of the numbers alone.
func WithoutMemory(r *Relay) { r.blind = true }

// WithoutDurabilityCheck makes the relay publish what may not be on disk yet.
func WithoutDurabilityCheck(r *Relay) { r.trusting = true }
