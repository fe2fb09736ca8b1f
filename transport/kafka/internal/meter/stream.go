package meter

import (
	"encoding/binary"
	"time"
)

// request is a request that waits for its answer.
type request struct {
	api     api
	version int16
	at      time.Time
}

// answer is what is measured of an answer.
type answer struct {
	name     string
	throttle time.Duration
}

const lengthBytes = 4

// requestIn returns the request that b is, with its correlation ID.
func requestIn(b []byte) (r request, id int32, ok bool) {
	const header = lengthBytes + 2 + 2 + 4
	if len(b) < header || int(binary.BigEndian.Uint32(b)) != len(b)-lengthBytes {
		return r, 0, false
	}
	r = request{api: apiOf(int16(binary.BigEndian.Uint16(b[4:]))), version: int16(binary.BigEndian.Uint16(b[6:]))}
	return r, int32(binary.BigEndian.Uint32(b[8:])), true
}

// maxThrottle bounds what is taken for a throttle time. The end of an answer to Produce may hold other fields, which are larger numbers.
const maxThrottle = time.Minute

// answer returns what the frame says as an answer to the request.
func (r request) answer(f *frame) answer {
	a := answer{name: r.api.name}
	if r.version < r.api.throttles {
		return a
	}
	var bytes []byte
	flexible := r.version >= r.api.flexible
	switch {
	case r.api.last && flexible: // before the tagged fields, of which there are mostly none
		if n := len(f.tail); n == len(f.last) && f.tail[n-1] == 0 {
			bytes = f.tail[:n-1]
		}
	case r.api.last:
		bytes = f.tail[min(1, len(f.tail)):]
	case flexible: // behind the tagged fields of the header
		if len(f.head) == len(f.first) && f.head[answerHeader] == 0 {
			bytes = f.head[answerHeader+1:]
		}
	default:
		bytes = f.head[min(answerHeader, len(f.head)):]
	}
	if len(bytes) >= 4 {
		if t := time.Duration(binary.BigEndian.Uint32(bytes)) * time.Millisecond; t <= maxThrottle {
			a.throttle = t
		}
	}
	return a
}

// answerHeader is the length and the correlation ID of an answer.
const answerHeader = lengthBytes + 4

// frame is the beginning and the end of an answer.
type frame struct {
	head, tail []byte // in first and last
	first      [answerHeader + 5]byte
	last       [5]byte
}

func (f *frame) id() int32 { return int32(binary.BigEndian.Uint32(f.head[lengthBytes:])) }

// stream finds the answers in what is read from a connection.
type stream struct {
	frame
	left int  // bytes of the answer to come, behind its length
	lost bool // this is not the protocol
}

// take reads on, and calls each with every answer that is complete.
func (s *stream) take(b []byte, each func(*frame)) {
	for len(b) > 0 && !s.lost {
		if s.head == nil {
			s.head, s.tail = s.first[:0], s.last[:0]
		}
		if missing := lengthBytes - len(s.head); missing > 0 {
			n := min(missing, len(b))
			s.head, b = append(s.head, b[:n]...), b[n:]
			if n == missing {
				s.left = int(int32(binary.BigEndian.Uint32(s.head)))
				s.lost = s.left < answerHeader-lengthBytes
			}
			continue
		}
		n := min(s.left, len(b))
		s.head = append(s.head, b[:min(n, cap(s.head)-len(s.head))]...)
		end := b[max(0, n-len(s.last)):n]
		keep := s.tail[max(0, len(s.tail)+len(end)-len(s.last)):]
		s.tail = s.last[:copy(s.last[:], keep)]
		s.tail = append(s.tail, end...)
		s.left, b = s.left-n, b[n:]
		if s.left == 0 {
			each(&s.frame)
			s.head = nil
		}
	}
}
