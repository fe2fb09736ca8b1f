package claim

// WithProof is for tests of the store alone.
var WithProof = withProof

// Housekeep is what Run does once an hour.
var Housekeep = (*PostgresStore).housekeep
