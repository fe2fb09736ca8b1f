package idempotencykey

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// Grants returns the statements that give the role of a service what it needs in the schema ("" means "millrace"), and
// nothing more; none for the role "". It can make days and drops none: that is for the table's owner. A service whose
// handlers publish needs outboxadmin.Grants too.
func Grants(schema, role string) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the idempotency keys: %w", err)
	}
	if role == "" {
		return "", nil
	}
	role = pgx.Identifier{role}.Sanitize()
	return pgschema.Render(fmt.Sprintf(`grant usage on schema {schema} to %[1]s;
grant select, insert on {schema}.idempotency_key to %[1]s;
grant execute on function {schema}.idempotency_key_days(int) to %[1]s;
grant select on {schema}.migration to %[1]s;
`, role), schema), nil
}
