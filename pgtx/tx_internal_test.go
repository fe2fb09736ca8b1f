package pgtx

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMentionsSavepoint(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"savepoint a": true, "SAVEPOINT a": true, "rollback to SavePoint a": true, "select 1; release savepoint": true,
		"": false, "v": false, "av": false, "savepoin": false, "save point": false, "insert into x values ($1)": false, "vsavepointv": true,
	} {
		assert.Equal(t, want, mentionsSavepoint(sql), sql)
	}
}
