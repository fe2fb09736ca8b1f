package outbox

import "context"

// CauseMetadata is the metadata entry with the ID of the event whose handler published this event under a claim. Publish sets it and
// overwrites a value that the handler copied. Publish omits it if only this entry would exceed PublisherConfig.Limits, or if the
// ID is longer than 255 bytes.
const CauseMetadata = "millrace_cause"

type causeKey struct{}

// WithCause returns a context for handling the event with this ID: events that are published with the context get the ID as
// CauseMetadata. A claim.Claim calls it.
func WithCause(ctx context.Context, eventID string) context.Context {
	return context.WithValue(ctx, causeKey{}, eventID)
}

// CauseFrom returns the ID of the event that is handled in this context, or "" if there is none.
func CauseFrom(ctx context.Context) string {
	id, _ := ctx.Value(causeKey{}).(string)
	return id
}
