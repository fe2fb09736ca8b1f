package devstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/framework/devstack/internal/watchdog"
)

// copyTo does what pg_basebackup does, which the binaries of embedded-postgres lack: it copies the server's files while the server writes
// to them. The copy is a standby that reads the log from before the copy on.
func (s *Server) copyTo(r *watchdog.Room) error {
	ctx, cancel := context.WithTimeout(context.Background(), watchdog.StartTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // the statements' errors matter
	if _, err := conn.Exec(ctx, "select pg_backup_start('standby', true)"); err != nil {
		return fmt.Errorf("begin a backup: %w", err)
	}
	if err := copyFolder(r, s.watchdog.Room.Path("data")); err != nil {
		return fmt.Errorf("copy the server's files: %w", err)
	}
	var label string
	if err := conn.QueryRow(ctx, "select labelfile from pg_backup_stop(false)").Scan(&label); err != nil {
		return fmt.Errorf("end a backup: %w", err)
	}
	set, err := os.ReadFile(r.Path("data/postgresql.auto.conf"))
	if err != nil {
		return err
	}
	return errors.Join(
		r.Write("data/backup_label", label), r.Write("data/standby.signal", ""),
		r.Write("data/postgresql.auto.conf", string(set)+"primary_conninfo = '"+s.dsn+"'\n"),
	)
}

// copyFolder copies the folder of a running server to the room's data. Files that the server removes meanwhile are left out, and so is what
// belongs to the running server alone.
func copyFolder(r *watchdog.Room, from string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(from, path)
		at := filepath.Join("data", name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case strings.HasPrefix(name, "pg_replslot/"): // a slot is a folder
			return fs.SkipDir
		case strings.HasPrefix(name, "postmaster."):
			return nil
		case entry.IsDir():
			return r.Folder(at)
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return r.Write(at, string(content))
	})
}
