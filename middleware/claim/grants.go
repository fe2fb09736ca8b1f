package claim

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// Grants returns the statements that give the role of a consumer what it needs of the PostgreSQL store in the schema (""
// means "millrace"), and nothing more; none for the role "". A consumer whose handlers publish needs outbox.Grants too.
func Grants(schema, role string) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the claim: %w", err)
	}
	if role == "" {
		return "", nil
	}
	role = pgx.Identifier{role}.Sanitize()
	return pgschema.Render(fmt.Sprintf(`grant usage on schema {schema} to %[1]s;
grant select, insert on {schema}.processed, {schema}.consumer to %[1]s;
grant update (name) on {schema}.consumer to %[1]s;
grant select, insert, update, delete on {schema}.claim_failed, {schema}.claim_key, {schema}.claim_run, {schema}.claim_start to %[1]s;
grant select on {schema}.migration to %[1]s;
`, role), schema), nil
}
