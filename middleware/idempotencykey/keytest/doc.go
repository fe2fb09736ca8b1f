// Package keytest is a conformance suite for servers that support the Idempotency-Key header. It does not depend on their code: it
// sends requests over HTTP, supplies the operation behind the server, and counts the executions of that operation.
//
//	func TestIdempotencyKey(t *testing.T) {
//		keytest.Run(t, keytest.Server{Handler: yourMiddleware})
//	}
//
// The expectations come from the IETF draft (draft-ietf-httpapi-idempotency-key-header-07) and from Stripe's documentation
// (https://docs.stripe.com/api/idempotent_requests). A failure cites the passage.
//
//	case                                        source
//	first request is executed                   draft, 2.6: processed normally, with its own status code
//	retry gets the first response               draft, 2.6: the result of the completed operation; Stripe: status code and body
//	PATCH is executed once                      draft, 1: methods such as POST or PATCH
//	GET is left alone                           Stripe: a key on a GET has no effect
//	new key is a new operation                  draft, 2.2: keys are unique
//	every character of a key counts             draft, 2.1: a String; Stripe: up to 255 characters
//	missing key is refused                      draft, 2.7: 400
//	missing key is no key                       Stripe: requests may come without a key (Server.KeyOptional)
//	malformed key is refused                    draft, 2.1: a String of structured fields (RFC 8941, 3.3.3 and 4.2)
//	two keys are refused                        draft, 2.1: not more than one
//	bare key is refused                         draft, 2.1: the value must be a String
//	bare key is the same key                    practice: most clients send it without quotes (QuotedOrBare)
//	other payload is refused                    draft, 2.7: 422; Stripe: parameters are compared
//	other endpoint is refused                   Stripe: the endpoint is compared
//	concurrent request is refused               draft, 2.6 and 2.7: 409
//	concurrent request waits                    Server.Waits, in place of 409
//	crowd with one key                          draft, 2.6: one of them is processed
//	other key does not wait                     draft, 2.2: keys are unique
//	client error is replayed                    draft, 2.6: success or an error; Stripe: whether it succeeds or fails
//	server error is replayed                    Stripe: including 500 errors
//	server error is executed again              Server.RetryErrors, in place of the replay
//	client that hangs up gets the response      draft, 1: the client retries until it gets a response
//	accounts do not share keys                  draft, 5: the key together with the client's identity
//	expired key is executed again               draft, 2.3; Stripe: a new request after the original is pruned
//	refusals point to documentation             draft, 2.7: problem details, or a Link
//
// No case depends on the server's speed: where requests must overlap, the operation blocks until the suite releases it. If the
// server does not answer, a case fails after a minute.
package keytest
