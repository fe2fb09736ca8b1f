package outbox

import "context"

// CauseMetadata is the metadata entry that names the event whose handler published this one under a claim, by its ID.
// Publish writes it, over what a handler may have copied; not where it alone would exceed PublisherConfig.Limits, nor an ID of
// more than 255 bytes.
const CauseMetadata = "millrace_cause"

type causeKey struct{}

// WithCause returns a context in which the event of that ID is handled: what is published with it has it as CauseMetadata.
// A claim.Claim does that.
func WithCause(ctx context.Context, eventID string) context.Context {
	return context.WithValue(ctx, causeKey{}, eventID)
}

// CauseFrom returns the ID of the event that is handled in the context; "" where none is.
func CauseFrom(ctx context.Context) string {
	id, _ := ctx.Value(causeKey{}).(string)
	return id
}
