package outboxadmin

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// GrantRoles are the roles that Grants gives privileges to; "" is left out. One role may stand in several places.
type GrantRoles struct {
	Writer string // of services that publish events, also delayed ones
	Relay  string // of processes that run relays
	// Operator is of people and programs that look, retry and discard events, and pause or redirect topics; and replay archived
	// events, if it is a Writer, too.
	Operator string
}

// Each role's privileges, without which it cannot do its work; the owner of the tables migrates, changes the number of
// shards, mends sequences and purges.
var privileges = struct{ writer, relay, operator []string }{
	writer: []string{
		`insert, select (shard, seq) on {schema}.outbox`, // select for the limit of the backlog
		`insert (due_at, hash, event_id, topic, key, headers, payload) on {schema}.outbox_delayed`,
		`select on {schema}.outbox_shard, {schema}.outbox_relay, {schema}.outbox_topic, {schema}.outbox_layout, {schema}.migration`,
		`select on {schema}.outbox_broker`,
		`select, insert, update, delete on {schema}.outbox_broker_process`,
		`execute on function {schema}.outbox_next(smallint), {schema}.outbox_shard_of(bigint), {schema}.outbox_cancel(text),
    {schema}.outbox_waiting(smallint, bigint, text[])`,
	},
	relay: []string{
		`select, insert, update, delete on {schema}.outbox_journal`,
		`select, insert, delete on {schema}.outbox`, // insert for delayed events that are due
		`select, insert, update, delete on {schema}.outbox_failed, {schema}.outbox_delayed, {schema}.outbox_relay`,
		`select, update on {schema}.outbox_shard`,
		`select, insert on {schema}.outbox_archive`,
		`select on {schema}.outbox_layout, {schema}.outbox_topic, {schema}.outbox_broker, {schema}.migration`,
		`select, insert, update, delete on {schema}.outbox_broker_process`,
		`select, insert, update on {schema}.outbox_landing`,
		`execute on function {schema}.outbox_next(smallint), {schema}.outbox_shard_of(bigint), {schema}.outbox_archive_days(interval), {schema}.outbox_landing_slot()`,
	},
	operator: []string{
		`select on {schema}.outbox, {schema}.outbox_failed, {schema}.outbox_delayed, {schema}.outbox_archive, {schema}.outbox_shard,
    {schema}.outbox_relay, {schema}.outbox_journal, {schema}.outbox_layout, {schema}.outbox_landing, {schema}.migration`,
		`select on {schema}.outbox_broker_process`,
		`select, insert, update on {schema}.outbox_broker`,
		`update (command) on {schema}.outbox_failed`,
		`execute on function {schema}.outbox_waiting(smallint, bigint, text[]), {schema}.outbox_landing_slot()`,
		`execute on function {schema}.outbox_discard(smallint, bigint[], text[], bigint[], text)`,
		`select, insert, update, delete on {schema}.outbox_topic`,
		`select, insert, update (events) on {schema}.outbox_audit`,
		`select, insert, update, delete on {schema}.outbox_replay`,
	},
}

// Grants returns the statements that give the roles what they need in the schema ("" means "millrace"), and nothing more.
// Run them as the owner of the tables, after outbox.Migrate. A change of the number of shards keeps them.
func Grants(schema string, roles GrantRoles) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the outbox: %w", err)
	}
	var sql strings.Builder
	for _, r := range []struct {
		name, sequences string
		privileges      []string
	}{
		{roles.Writer, "usage, select", privileges.writer},
		{roles.Relay, "usage, select", privileges.relay},
		{roles.Operator, "select", privileges.operator},
	} {
		if r.name == "" {
			continue
		}
		role := pgx.Identifier{r.name}.Sanitize()
		for _, p := range append([]string{`usage on schema {schema}`}, r.privileges...) {
			fmt.Fprintf(&sql, "grant %s to %s;\n", p, role)
		}
		// However many there are.
		fmt.Fprintf(&sql, `do $do$
declare
    sequence regclass;
begin
    for sequence in select oid from pg_class where relnamespace = '{schema}'::regnamespace and relkind = 'S' and relname ~ '^outbox_seq_\d+$' loop
        execute format('grant %s on sequence %%s to %%I', sequence, %s);
    end loop;
end
$do$;
`, r.sequences, "'"+strings.ReplaceAll(r.name, "'", "''")+"'")
	}
	return pgschema.Render(sql.String(), schema), nil
}
