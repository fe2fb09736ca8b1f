package brokermigration

import (
	"net/http"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
)

// pushing is a broker that delivers by push.
type pushing struct{ known }

func (*pushing) Publisher() (message.Publisher, error) { return &sent{}, nil }
func (*pushing) PushHandler() http.Handler             { return nil }
func (*pushing) PushPaths() []string                   { return []string{"/pubsub"} }

// A program without the framework's configuration is refused with the same remedy.
func TestPushIsRefused(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), nil, &pushing{known{name: "pubsub"}}, &pushing{known{name: "kafka"}}, Config{})
	assert.ErrorContains(t, err, "broker pubsub has consumers with push, which do not work in a migration: "+WithoutPush)
}
