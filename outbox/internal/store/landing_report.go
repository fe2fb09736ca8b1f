package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// LandingReport is the state of the events that publishers with outbox.Log put into the write-ahead log. Until a relay has landed them, which
// means that it has made rows of them, no list and no count has them.
type LandingReport struct {
	Slot     string     `json:"slot"`      // the replication slot that keeps the WAL
	Created  bool       `json:"created"`   // the slot exists and was created to the end; it may be Lost
	Creating bool       `json:"creating"`  // it is being created, which waits for all transactions that run: publishers are refused
	Lost     bool       `json:"lost"`      // the server has removed what the slot needs
	Read     bool       `json:"read"`      // a relay reads it
	Stuck    bool       `json:"stuck"`     // a relay reads it, but has not moved LandedAt for a minute
	Behind   int64      `json:"behind"`    // bytes of WAL, of whatever writers, in which events may not be landed yet
	Kept     int64      `json:"kept"`      // bytes of WAL that the server keeps for the slot
	Failover bool       `json:"failover"`  // standbys may synchronize the slot
	LandedAt *time.Time `json:"landed_at"` // when a relay last landed events, or found that there were none: every few seconds
	Cuts     int64      `json:"cuts"`      // how often WAL was lost
	Cut      *Cut       `json:"cut"`       // the last of them, until an operator has cleared it
}

// Cut is WAL that was lost. Events in it that had not been landed are lost, too.
type Cut struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"` // a position in the WAL
	To     string    `json:"to"`   // "" while there is no other slot
	Reason string    `json:"reason"`
}

// ReadLanding returns the state of the events in the WAL, or nil if there is neither a slot nor a marker.
func ReadLanding(ctx context.Context, tx pgx.Tx, schema string) (*LandingReport, error) {
	var (
		l   LandingReport
		c   Cut
		cut *time.Time
	)
	err := tx.QueryRow(ctx, Query("landing_report", schema)).Scan(&l.Slot, &l.Created, &l.Creating, &l.Lost, &l.Read, &l.Stuck, &l.Behind, &l.Kept, &l.Failover, &l.LandedAt, &l.Cuts, &cut, &c.From, &c.To, &c.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if cut != nil {
		c.At = *cut
		l.Cut = &c
	}
	return &l, err
}
