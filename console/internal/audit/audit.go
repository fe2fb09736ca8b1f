// Package audit merges the audit tables of all parts into pages.
package audit

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
)

// PageSize is the number of lines of a page.
const PageSize = 50

// Line is an action of an operator.
type Line struct {
	ID       int64
	At       time.Time
	Actor    string
	Where    string // outbox, effects, keys, or the consumer
	Action   string
	Subject  string // the event, or the number of events
	Link     string // the path of the subject's page, below the database's base
	Note     string
	Before   string // the state before the action
	Finished bool
	Day      string // set on the first line of a day
}

// table lists the actions on one part with IDs below before, the latest first.
type table struct {
	part string
	list func(ctx context.Context, db pgtx.DB, schema string, before int64) ([]Line, error)
}

// tables are the audit tables to merge.
var tables = []table{
	{"claim", func(ctx context.Context, db pgtx.DB, schema string, before int64) ([]Line, error) {
		found, err := deadletter.ListAudit(ctx, db, schema, deadletter.AuditListing{AuditPage: deadletter.AuditPage{Before: before, Limit: PageSize + 1}})
		return lines(found, ofConsumer), err
	}},
	{"outbox", func(ctx context.Context, db pgtx.DB, schema string, before int64) ([]Line, error) {
		found, err := outboxadmin.ListAudit(ctx, db, schema, outboxadmin.AuditPage{Before: before, Limit: PageSize + 1})
		return lines(found, ofOutbox), err
	}},
	{"effect", func(ctx context.Context, db pgtx.DB, schema string, before int64) ([]Line, error) {
		found, err := effect.ListAudit(ctx, db, schema, effect.AuditPage{Before: before, Limit: PageSize + 1})
		return lines(found, ofEffect), err
	}},
	{"idempotencykey", func(ctx context.Context, db pgtx.DB, schema string, before int64) ([]Line, error) {
		found, err := idempotencykey.ListAudit(ctx, db, schema, idempotencykey.AuditPage{Before: before, Limit: PageSize + 1})
		return lines(found, ofKey), err
	}},
}

func lines[T any](found []T, line func(T) Line) (all []Line) {
	for _, one := range found {
		all = append(all, line(one))
	}
	return all
}

// Read returns the page after the cursor, from the parts that have tables. next is nil on the last page.
func Read(ctx context.Context, db pgtx.DB, schema string, there map[string]bool, behind Cursor) (page []Line, next Cursor, err error) {
	found := make([][]Line, len(tables))
	for i, t := range tables {
		if there[t.part] {
			if found[i], err = t.list(ctx, db, schema, behind[i]); err != nil {
				return nil, nil, err
			}
		}
	}
	page, next = merge(found, behind)
	return page, next, nil
}

// Cursor is the end of a page: for each table the ID of its last line, 0 for none.
type Cursor []int64

// ParseCursor reads a cursor. "" is the cursor before the first page.
func ParseCursor(text string) (Cursor, bool) {
	c := make(Cursor, len(tables))
	if text == "" {
		return c, true
	}
	parts := strings.Split(text, ".")
	if len(parts) != len(c) {
		return nil, false
	}
	for i, part := range parts {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 0 {
			return nil, false
		}
		c[i] = n
	}
	return c, true
}

// String returns the cursor as a URL parameter.
func (c Cursor) String() string {
	var parts []string
	for _, id := range c {
		parts = append(parts, strconv.FormatInt(id, 10))
	}
	return strings.Join(parts, ".")
}

// merge takes a page from lists that are each sorted, the latest first. next is nil if nothing is left.
func merge(found [][]Line, before Cursor) (page []Line, next Cursor) {
	next = append(next, before...)
	for {
		latest := -1
		for i := range found {
			if len(found[i]) > 0 && (latest < 0 || found[i][0].At.After(found[latest][0].At)) {
				latest = i
			}
		}
		switch {
		case latest < 0:
			return page, nil
		case len(page) == PageSize:
			return page, next
		}
		line := found[latest][0]
		found[latest], next[latest] = found[latest][1:], line.ID
		if day := line.At.UTC().Format("Monday, January 2, 2006"); len(page) == 0 || day != page[len(page)-1].At.UTC().Format("Monday, January 2, 2006") {
			line.Day = day
		}
		page = append(page, line)
	}
}

func ofConsumer(a deadletter.Audit) Line {
	var detail struct {
		Note, State, Reason, Error string
		Replay                     int64
	}
	_ = json.Unmarshal(a.Detail, &detail) // missing fields are not shown
	l := Line{ID: a.ID, At: a.At, Actor: a.Actor, Where: a.Consumer, Action: a.Action, Note: detail.Note, Finished: true}
	switch {
	case a.EventID != "":
		l.Subject, l.Link = words.Abbreviate([]string{a.EventID})[0], "/event?"+url.Values{"id": {a.EventID}}.Encode()
	case detail.Replay > 0:
		l.Subject, l.Link = "replay "+strconv.FormatInt(detail.Replay, 10), "/replay?id="+strconv.FormatInt(detail.Replay, 10)
	}
	if detail.State != "" {
		l.Before = words.ClaimStates.Of(detail.State)
		if why := words.Why(detail.Reason, detail.Error); why != "" {
			l.Before += ": " + why
		}
	}
	return l
}

func ofOutbox(a outboxadmin.Audit) Line {
	var detail struct {
		Note, Topic, To, Group, Key string
		Replay                      int64
	}
	_ = json.Unmarshal(a.Detail, &detail) // missing fields are not shown
	var of []string
	for _, part := range [][2]string{{"topic", detail.Topic}, {"to", detail.To}, {"cause", detail.Group}, {"key", detail.Key}} {
		if part[1] != "" {
			of = append(of, part[0]+" "+part[1])
		}
	}
	l := Line{ID: a.ID, At: a.At, Actor: a.Actor, Where: "outbox", Action: a.Action, Note: detail.Note, Finished: !a.Unfinished}
	l.Subject = strings.Join(of, ", ")
	if a.Action == "replay" {
		detail.Replay = a.ID
	}
	if detail.Replay > 0 {
		l.Link = "/outbox/archive/replay?id=" + strconv.FormatInt(detail.Replay, 10)
	}
	if a.Action != "replay" && detail.Replay > 0 {
		l.Subject = "replay " + strconv.FormatInt(detail.Replay, 10)
	}
	if a.Events > 0 || l.Subject == "" {
		l.Subject = strings.TrimSuffix(strconv.FormatInt(a.Events, 10)+" "+words.Pick(a.Events, "event", "events")+" of "+l.Subject, " of ")
	}
	return l
}

func ofEffect(a effect.Audit) Line {
	l := Line{ID: a.ID, At: a.At, Actor: a.Actor, Where: "effects", Action: "resolve: " + words.EffectState(a.State), Subject: a.Key, Note: a.Note, Finished: true}
	l.Link = "/effects?" + url.Values{"state": {"all"}, "key": {a.Key}}.Encode()
	if a.Action != "resolve" {
		l.Action = a.Action
		return l
	}
	if l.Before = words.EffectState(a.Before); a.Reason != "" {
		l.Before += ": " + a.Reason
	}
	return l
}

func ofKey(a idempotencykey.Audit) Line {
	return Line{
		ID: a.ID, At: a.At, Actor: a.Actor, Where: "keys of " + a.Service, Action: a.Action, Subject: a.Key, Note: a.Note, Finished: true,
		Link: "/keys?" + url.Values{"key": {a.Key}}.Encode(), Before: a.Request + ", status " + strconv.Itoa(a.Status),
	}
}
