package outbox

import "time"

// observer is told what the relay does.
type observer struct{}

func (observer) published(string, []*event, time.Duration) {}
func (observer) failed(string, int)                        {}
func (observer) parked([]parking, int)                     {}
func (observer) surprised(int16)                           {}
