package idempotencykey

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// GrantRoles names the roles to grant privileges to. "" means none.
type GrantRoles struct {
	HTTP     string // of services whose handlers store answers
	Operator string // of operators who list and forget answers
}

// Grants returns the statements that grant the roles the privileges that they need in the schema ("" means "millrace"), and no
// others. A service can create days; only the table's owner can drop them. A service whose handlers publish also needs
// outboxadmin.Grants.
func Grants(schema string, roles GrantRoles) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the idempotency keys: %w", err)
	}
	var sql strings.Builder
	for _, g := range []struct{ role, own string }{
		{roles.HTTP, "grant select, insert on {schema}.idempotency_key to %[1]s;\n" +
			"grant select, insert, update on {schema}.idempotency_key_retention to %[1]s;\n" +
			"grant execute on function {schema}.idempotency_key_days(int) to %[1]s;\n"},
		{roles.Operator, "grant select, delete on {schema}.idempotency_key to %[1]s;\n" +
			"grant select on {schema}.idempotency_key_retention to %[1]s;\n" +
			"grant select, insert on {schema}.idempotency_key_audit to %[1]s;\n"},
	} {
		if g.role != "" {
			fmt.Fprintf(&sql, "grant usage on schema {schema} to %[1]s;\ngrant select on {schema}.migration to %[1]s;\n"+g.own,
				pgx.Identifier{g.role}.Sanitize())
		}
	}
	return pgschema.Render(sql.String(), schema), nil
}
