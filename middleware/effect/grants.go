package effect

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/pgschema"
)

// GrantRoles names the roles to grant privileges to. "" means none.
type GrantRoles struct {
	Consumer string // of services whose handlers have effects
	Operator string // of operators who list effects and resolve doubts
}

// Grants returns the statements that grant the roles the privileges that they need on the ledger in the schema ("" means
// "millrace"), and no others. Only the owner of the tables can drop days.
func Grants(schema string, roles GrantRoles) (string, error) {
	schema, err := pgschema.Validate(schema)
	if err != nil {
		return "", fmt.Errorf("grants of the ledger of effects: %w", err)
	}
	var sql strings.Builder
	for _, g := range []struct{ role, own string }{
		{roles.Consumer, "grant select, insert, update on {schema}.effect, {schema}.effect_retention to %[1]s;\n"},
		{roles.Operator, "grant select, insert, update on {schema}.effect to %[1]s;\ngrant select on {schema}.effect_retention to %[1]s;\ngrant select, insert on {schema}.effect_resolution to %[1]s;\n"},
	} {
		if g.role != "" {
			fmt.Fprintf(&sql, "grant usage on schema {schema} to %[1]s;\ngrant select on {schema}.migration to %[1]s;\n"+
				"grant execute on function {schema}.effect_days(int) to %[1]s;\n"+g.own, pgx.Identifier{g.role}.Sanitize())
		}
	}
	return pgschema.Render(sql.String(), schema), nil
}
