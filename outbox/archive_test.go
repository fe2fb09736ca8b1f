package outbox_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// What was published is kept, and days that are past are dropped, whole.
func TestArchive(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.publishMany(topic, 20, func(i int) string { return string(rune('a' + i)) })
	stop := f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{Archive: 48 * time.Hour}))
	eventually(t, "they are published", func() bool { return f.rows() == 0 })
	archived := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.outbox_archive where payload = convert_to(key, 'UTF8') and relay <> '' and attempts = 1`).Scan(&n))
		return n
	}
	assert.Equal(t, 20, archived())

	// Tomorrow's partition is missing, as after a long night of the relays: the delete makes it.
	days := `select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = '` + f.schema + `.outbox_archive'::regclass order by 1`
	_, err := f.pool.Exec(t.Context(), `do $$ declare p text; begin for p in `+days+` loop execute 'drop table `+f.schema+`.' || p; end loop; end $$`)
	require.NoError(t, err)
	f.publish("k", "k")
	eventually(t, "it is published and archived", func() bool { return f.rows() == 0 && archived() == 1 })
	stop()

	// A relay starts, and makes the days that are missing, while a transaction reads the archive, as pg_dump does. It drops no day.
	last := time.Now().UTC().AddDate(0, 0, 3).Format("outbox_archive_20060102")
	_, err = f.pool.Exec(t.Context(), `drop table if exists `+f.schema+`.`+last) // it may be midnight now
	require.NoError(t, err)

	_, err = f.pool.Exec(t.Context(), `create table `+f.schema+`.outbox_archive_20200101 partition of `+f.schema+`.outbox_archive for values from ('2020-01-01 00:00+00') to ('2020-01-02 00:00+00')`)
	require.NoError(t, err)
	reading, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = reading.Exec(t.Context(), `select from `+f.schema+`.outbox_archive`)
	require.NoError(t, err)
	relay := f.newRelay(batchRecorder{broker}, outbox.RelayConfig{Archive: 48 * time.Hour})
	stop = f.run(relay)
	<-relay.Running()
	stop()
	rows, err := f.pool.Query(t.Context(), days)
	require.NoError(t, err)
	made, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	assert.Contains(t, made, last)
	assert.Contains(t, made, "outbox_archive_20200101")
	require.NoError(t, reading.Rollback(t.Context()))
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{Archive: 48 * time.Hour}))
	eventually(t, "the old day is gone", func() (gone bool) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select to_regclass('`+f.schema+`.outbox_archive_20200101') is null`).Scan(&gone))
		return gone
	})
	assert.Equal(t, 1, archived())
}
