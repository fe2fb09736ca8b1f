package millracetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/middleware/effect"
)

// database is the database of all runs. Each run begins with the same tables.
type database struct {
	admin   *pgxpool.Pool
	empty   []string // Millrace's tables that are empty at the start of a run
	tables  string   // statements of the option Tables
	ignored map[string]bool
	made    map[string]map[string]bool // table -> columns whose values the database makes
}

// prepare makes Millrace's tables, and notes which of them are empty.
func (d *database) prepare(ctx context.Context) error {
	all, err := tables.Migrators(d.admin, schema)
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := m.Up(ctx); err != nil {
			return err
		}
	}
	rows, err := d.admin.Query(ctx, `select c.oid::regclass::text from pg_class c where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'p')
		and not c.relispartition and (xpath('/row/c/text()', query_to_xml('select count(*) as c from ' || c.oid::regclass, false, true, '')))[1]::text = '0'`, schema)
	if err != nil {
		return err
	}
	d.empty, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// reset restores the tables for the next run.
func (d *database) reset(ctx context.Context) error {
	var statements strings.Builder
	for _, table := range d.empty {
		statements.WriteString("delete from " + table + "; ")
	}
	rows, err := d.admin.Query(ctx, `select quote_ident(nspname) from pg_namespace where nspname not in ($1, 'information_schema') and nspname !~ '^pg_'`, schema)
	if err != nil {
		return err
	}
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range schemas {
		statements.WriteString("drop schema " + name + " cascade; ")
	}
	statements.WriteString("create schema public")
	if _, err := d.admin.Exec(ctx, statements.String()); err != nil {
		return fmt.Errorf("reset the database: %w", err)
	}
	if _, err := d.admin.Exec(ctx, d.tables); err != nil {
		return fmt.Errorf("the statements of the option Tables: %w", err)
	}
	return nil
}

// snapshot is the result of a run: table or topic -> its rows as JSON, sorted.
type snapshot map[string][]string

// read returns the rows of the caller's tables, and the events in the outbox.
func (d *database) read(ctx context.Context) (snapshot, error) {
	rows, err := d.admin.Query(ctx, `select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where c.relkind in ('r', 'p') and not c.relispartition and n.nspname not in ($1, 'information_schema') and n.nspname !~ '^pg_'`, schema)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (name pgx.Identifier, err error) {
		name = make(pgx.Identifier, 2)
		return name, row.Scan(&name[0], &name[1])
	})
	if err != nil {
		return nil, err
	}
	if d.made == nil {
		if d.made, err = d.makes(ctx); err != nil {
			return nil, err
		}
	}
	found := snapshot{}
	for _, name := range names {
		called := strings.TrimPrefix(strings.Join(name, "."), "public.")
		if err := d.collect(ctx, found, "select '"+strings.ReplaceAll(called, "'", "''")+"', to_jsonb(t)::text from "+name.Sanitize()+" t", "table ", d.made[called]); err != nil {
			return nil, err
		}
	}
	for table, prefix := range map[string]string{"outbox": "the events on ", "outbox_delayed": "the delayed events on "} {
		query := `select topic, jsonb_build_object('key', key, 'metadata', convert_from(headers, 'UTF8')::jsonb, 'payload', encode(payload, 'base64'))::text from ` + schema + `.` + table
		if err := d.collect(ctx, found, query, prefix, nil); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// collect reads rows with their table or topic. It omits columns that the database makes or the caller ignores.
func (d *database) collect(ctx context.Context, found snapshot, query, prefix string, made map[string]bool) error {
	rows, err := d.admin.Query(ctx, query)
	if err != nil {
		return err
	}
	var name, text string
	_, err = pgx.ForEachRow(rows, []any{&name, &text}, func() error {
		var row map[string]any
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber() // keeps all digits
		if err := decoder.Decode(&row); err != nil {
			return err
		}
		if encoded, ok := row["payload"].(string); ok && strings.Contains(prefix, "events") {
			unfold(row, encoded)
		}
		for column := range row {
			if made[column] || d.ignored[name+"."+column] {
				delete(row, column)
			}
		}
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(row); err != nil {
			return err
		}
		found[prefix+name] = append(found[prefix+name], strings.TrimSpace(line.String()))
		return nil
	})
	for _, rows := range found {
		slices.Sort(rows)
	}
	return err
}

// unfold replaces an event's encoded payload by the payload's fields.
func unfold(row map[string]any, encoded string) {
	var payload []byte
	_ = json.Unmarshal([]byte(`"`+strings.ReplaceAll(encoded, "\n", "")+`"`), &payload)
	delete(row, "payload")
	fields := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	if decoder.Decode(&fields) != nil {
		fields = map[string]any{"payload": string(payload)}
	}
	for name, value := range fields {
		if _, taken := row[name]; taken {
			name = "payload." + name
		}
		row[name] = value
	}
	metadata, _ := row["metadata"].(map[string]any)
	for _, trace := range []string{"traceparent", "tracestate", "baggage"} {
		delete(metadata, trace)
	}
}

// makes returns for each table the columns whose values the database makes, which differ after a rollback: sequences, times,
// random defaults, and foreign keys to such columns.
func (d *database) makes(ctx context.Context) (map[string]map[string]bool, error) {
	made := map[string]map[string]bool{}
	var table, column, foreign, key string
	note := func() bool {
		table = strings.TrimPrefix(table, "public.")
		if made[table] == nil {
			made[table] = map[string]bool{}
		}
		before := made[table][column]
		made[table][column] = true
		return !before
	}
	rows, err := d.admin.Query(ctx, `select n.nspname || '.' || c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
		join pg_namespace n on n.oid = c.relnamespace left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
		where c.relkind in ('r', 'p') and a.attnum > 0 and n.nspname <> $1 and (a.attidentity <> '' or a.attgenerated <> '' or pg_get_expr(f.adbin, f.adrelid)
			~* 'nextval|now\(|current_|localtime|timestamp\(|timeofday|random|uuid|txid|xact_id')`, schema)
	if err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&table, &column}, func() error { note(); return nil }); err != nil {
		return nil, err
	}
	for more := true; more; {
		more = false
		rows, err := d.admin.Query(ctx, `select n.nspname || '.' || c.relname, a.attname, fn.nspname || '.' || fc.relname, fa.attname
			from pg_constraint k cross join unnest(k.conkey, k.confkey) as p(own, other)
			join pg_class c on c.oid = k.conrelid join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid and a.attnum = p.own
			join pg_class fc on fc.oid = k.confrelid join pg_namespace fn on fn.oid = fc.relnamespace join pg_attribute fa on fa.attrelid = fc.oid and fa.attnum = p.other
			where k.contype = 'f' and n.nspname <> $1`, schema)
		if err != nil {
			return nil, err
		}
		if _, err := pgx.ForEachRow(rows, []any{&table, &column, &foreign, &key}, func() error {
			if made[strings.TrimPrefix(foreign, "public.")][key] {
				more = note() || more
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// forget ends the sessions of cut connections, as PostgreSQL does when it notices. It also moves the deadlines of running effects
// into the past, so that effects of a dead process can be settled.
func (d *database) forget(ctx context.Context, lost []uint32) error {
	for _, pid := range lost {
		if _, err := d.admin.Exec(ctx, `select pg_terminate_backend($1, 20000)`, int32(pid)); err != nil {
			return err
		}
	}
	_, err := d.admin.Exec(ctx, `update `+schema+`.effect set until = clock_timestamp() - interval '1 minute' where state in ('running', 'doubt')`)
	return err
}

// resolve decides about effects in doubt, like an operator who knows what the provider has done.
func (d *database) resolve(ctx context.Context, happened func(key string) bool, responses map[string][]byte) error {
	doubts, err := effect.List(ctx, d.admin, schema, effect.Listing{State: "doubt"})
	if err != nil {
		return err
	}
	for _, e := range doubts {
		decision := effect.Resolution{By: "millracetest", Done: happened(e.Key)}
		if decision.Done {
			decision.Response = responses[e.Key]
		}
		if err := effect.Resolve(ctx, d.admin, schema, e.Key, decision); err != nil {
			return err
		}
	}
	return nil
}

// recorded returns effect key -> the response that the ledger has recorded.
func (d *database) recorded(ctx context.Context) (map[string][]byte, error) {
	done, err := effect.List(ctx, d.admin, schema, effect.Listing{State: "done"})
	found := map[string][]byte{}
	for _, e := range done {
		found[e.Key] = e.Response
	}
	return found, err
}

// change is a difference between two runs, in one table or topic.
type change struct {
	name        string // such as "table labour"
	more, fewer []string
}

func compare(before, after snapshot) (change, bool) {
	names := slices.Sorted(maps.Keys(before))
	for name := range after {
		if _, both := before[name]; !both {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(-cmp.Compare(strings.Count(a, "table "), strings.Count(b, "table ")), cmp.Compare(a, b))
	})
	for _, name := range names {
		c := change{name: name, more: without(after[name], before[name]), fewer: without(before[name], after[name])}
		if len(c.more)+len(c.fewer) > 0 {
			return c, true
		}
	}
	return change{}, false
}

// without returns the rows that are not among others. A row that occurs several times must be there as often.
func without(rows, others []string) (left []string) {
	n := map[string]int{}
	for _, row := range others {
		n[row]++
	}
	for _, row := range rows {
		if n[row]--; n[row] < 0 {
			left = append(left, row)
		}
	}
	return left
}
