package claim

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// GrantRoles names the roles that Grants gives privileges to. An empty name is left out. Several fields may name the same role.
type GrantRoles struct {
	Consumer string // role of services with claims
	Operator string // role of people and programs that inspect, edit, replay and discard dead letters
}

// privileges are the ones that each role needs for its work. The owner of the tables migrates and drops days.
var privileges = struct{ consumer, operator []string }{
	consumer: []string{
		`select, insert on {schema}.processed, {schema}.processed_ahead, {schema}.consumer`,
		`update (name) on {schema}.consumer`,
		`select, insert, update, delete on {schema}.claim_failed, {schema}.claim_key, {schema}.claim_run, {schema}.claim_start`,
		`select, insert, update on {schema}.journal, {schema}.processed_retention`,
		`select on {schema}.claim_failed_count`,
		`execute on function {schema}.claim_failed_fold()`,
		`select on {schema}.migration, {schema}.claim_replay`, // this and the next three let dead letters expire
		`select, insert on {schema}.claim_audit`,
		`insert on {schema}.claim_replay_superseded`,
		`select, delete on {schema}.claim_replay_event`,
		`execute on function {schema}.processed_days(int), {schema}.journal_days(int), {schema}.processed_settle(uuid, uuid, smallint), {schema}.processed_early(uuid, smallint),
		{schema}.claim_refused(text, boolean), {schema}.claim_forgotten(smallint, uuid)`,
	},
	operator: []string{
		`select on {schema}.processed, {schema}.processed_hashed, {schema}.processed_retention, {schema}.consumer, {schema}.claim_run, {schema}.claim_start, {schema}.journal, {schema}.migration`,
		`insert on {schema}.processed`,
		`select, insert on {schema}.processed_ahead`,
		`select, insert, update, delete on {schema}.claim_failed, {schema}.claim_key`,
		`select on {schema}.claim_failed_count`,
		`execute on function {schema}.claim_failed_fold()`,
		`select, insert on {schema}.claim_audit, {schema}.claim_replay_superseded`,
		`select, insert, update on {schema}.claim_replay`,
		`select, insert, delete on {schema}.claim_replay_event`,
		`execute on function {schema}.processed_settle(uuid, uuid, smallint), {schema}.processed_early(uuid, smallint)`,
	},
}

// Grants returns the statements that give the roles the privileges that they need for the PostgreSQL store in the schema (""
// means "millrace"), and no more. Run the statements as the owner of the tables, after Migrate. If handlers publish events, the
// consumer's role needs outboxadmin.Grants too.
func Grants(schema string, roles GrantRoles) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the claim: %w", err)
	}
	var sql strings.Builder
	for _, r := range []struct {
		name       string
		privileges []string
	}{{roles.Consumer, privileges.consumer}, {roles.Operator, privileges.operator}} {
		if r.name == "" {
			continue
		}
		for _, p := range append([]string{`usage on schema {schema}`}, r.privileges...) {
			fmt.Fprintf(&sql, "grant %s to %s;\n", p, pgx.Identifier{r.name}.Sanitize())
		}
	}
	return pgschema.Render(sql.String(), schema), nil
}
