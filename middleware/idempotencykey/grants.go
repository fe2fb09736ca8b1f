package idempotencykey

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// GrantRoles names the roles that Grants is for; "" for none.
type GrantRoles struct {
	HTTP     string // of services whose handlers store answers
	Operator string // of those that list answers, and forget some
}

// Grants returns the statements that give the roles what they need in the schema ("" means "millrace"), and nothing more. A
// service can make days and drops none: that is for the table's owner. A service whose handlers publish needs
// outboxadmin.Grants too.
func Grants(schema string, roles GrantRoles) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the idempotency keys: %w", err)
	}
	var sql strings.Builder
	for _, g := range []struct{ role, own string }{
		{roles.HTTP, "grant select, insert on {schema}.idempotency_key to %[1]s;\n" +
			"grant execute on function {schema}.idempotency_key_days(int) to %[1]s;\n"},
		{roles.Operator, "grant select, delete on {schema}.idempotency_key to %[1]s;\n" +
			"grant select, insert on {schema}.idempotency_key_audit to %[1]s;\n"},
	} {
		if g.role != "" {
			fmt.Fprintf(&sql, "grant usage on schema {schema} to %[1]s;\ngrant select on {schema}.migration to %[1]s;\n"+g.own,
				pgx.Identifier{g.role}.Sanitize())
		}
	}
	return pgschema.Render(sql.String(), schema), nil
}
