package meter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

const throttled = 1234 * time.Millisecond

// answerTo is the frame of an answer with a throttle time.
func answerTo(key, version int16, id int32) []byte {
	response := kmsg.ResponseForKey(key)
	response.SetVersion(version)
	if r, ok := response.(kmsg.SetThrottleResponse); ok {
		r.SetThrottle(int32(throttled / time.Millisecond))
	}
	body := kbin.AppendInt32(nil, id)
	if response.IsFlexible() && key != 18 { // whose header never has tagged fields
		body = append(body, 0)
	}
	body = response.AppendTo(body)
	return append(kbin.AppendInt32(nil, int32(len(body))), body...)
}

// Each kind of request has the versions that kmsg knows, whatever the pieces are in which its answers come.
func TestAnswers(t *testing.T) {
	for key, api := range apis {
		response := kmsg.ResponseForKey(key)
		for version := range response.MaxVersion() + 1 {
			response.SetVersion(version)
			var want time.Duration
			if version >= api.throttles {
				want = throttled
				require.Equal(t, response.IsFlexible(), version >= api.flexible, "%s version %d", api.name, version)
			}
			rapid.Check(t, func(t *rapid.T) {
				bytes := append(answerTo(key, version, 7), answerTo(key, version, 8)...)
				var got []answer
				var s stream
				for len(bytes) > 0 {
					n := rapid.IntRange(1, len(bytes)).Draw(t, "piece")
					s.take(bytes[:n], func(f *frame) {
						require.EqualValues(t, 7+len(got), f.id())
						got = append(got, request{api: api, version: version}.answer(f))
					})
					bytes = bytes[n:]
				}
				require.Equal(t, []answer{{api.name, want}, {api.name, want}}, got, "%s version %d", api.name, version)
			})
		}
	}
}

// What is not the protocol is passed on, and not measured.
func TestOtherBytes(t *testing.T) {
	var s stream
	for _, bytes := range []string{"\x00\x00\x00\x02no", "HTTP/1.1 400 Bad Request\r\n\r\n", "\xff\xff\xff\xff\xff"} {
		s = stream{}
		s.take([]byte(bytes), func(*frame) { require.Fail(t, "no answer") })
	}
	_, _, ok := requestIn([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.False(t, ok)
	require.Equal(t, "other", apiOf(-1).name)
}
