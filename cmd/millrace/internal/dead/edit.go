package dead

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/cli"
	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/internal/explain"
	"github.com/millrace-go/millrace/middleware/deadletter"
)

func editCommand(a *cli.App) *cobra.Command {
	var (
		consumer, payload, file string
		set, unset              []string
		change                  deadletter.Change
		by                      deadletter.By
	)
	c := &cobra.Command{
		Use: "edit EVENT-ID", ValidArgsFunction: cobra.NoFileCompletions, Short: "Change the payload or the headers of a failed event", Args: cli.Argument,
		Long: "Changes the payload or the headers of a failed event. Without --payload, --payload-file and the flags for headers it opens\n" +
			"the payload in $VISUAL, $EDITOR or vi. The event's state stays the same: \"millrace dead replay\" retries it.",
		Example: "  millrace dead edit 0198c0de…3f2a\n  millrace dead edit 0198c0de…3f2a --set-header tenant=7\n  jq .fixed event.json | millrace dead edit 0198c0de…3f2a --payload-file -",
	}
	c.Flags().StringVar(&consumer, "consumer", "", "as it failed for this consumer")
	c.Flags().StringVar(&payload, "payload", "", "the new payload")
	c.Flags().StringVar(&file, "payload-file", "", "file with the new payload; - for standard input")
	c.Flags().StringArrayVar(&set, "set-header", nil, "set a header, as NAME=VALUE; may be repeated")
	c.Flags().StringArrayVar(&unset, "unset-header", nil, "remove the header of this name; may be repeated")
	cli.AuditVar(c, &by.Actor, &by.Note)
	connected := a.Connected(func(ctx context.Context, pool *pgxpool.Pool, args []string) (err error) {
		id, err := explain.WholeID(ctx, pool, a.Schema, args[0], explain.Consumers)
		if err != nil {
			return err
		}
		if change.Payload == nil && change.Set == nil && change.Unset == nil {
			if change.Payload, change.Former, err = editPayload(ctx, a, pool, id, consumer); err != nil {
				return err
			}
			if change.Payload == nil {
				a.Say("Nothing was changed.")
				return nil
			}
		}
		if err := deadletter.Edit(ctx, pool, a.Schema, id, consumer, change, by); err != nil {
			return err
		}
		a.Say("The event was changed. Retry it: %s", a.Reach.Command(id, "dead", "replay"))
		return nil
	})
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		switch {
		case c.Flags().Changed("payload") && file != "":
			return cli.Misuse(errors.New("--payload and --payload-file cannot be combined"))
		case c.Flags().Changed("payload"):
			change.Payload = []byte(payload)
		case file == "-":
			change.Payload, err = io.ReadAll(a.Stdin)
		case file != "":
			change.Payload, err = os.ReadFile(file)
		}
		if err != nil {
			return fmt.Errorf("read the payload: %w", err)
		}
		for _, header := range set {
			name, value, ok := strings.Cut(header, "=")
			if !ok || name == "" {
				return cli.Misuse(fmt.Errorf("--set-header is %q: want NAME=VALUE", header))
			}
			if change.Set == nil {
				change.Set = map[string]string{}
			}
			change.Set[name] = value
		}
		change.Unset = unset
		return connected(c, args)
	}
	return c
}

// editPayload opens the payload in an editor. If it was changed, it returns the new payload, and the SHA-256 of the old one.
func editPayload(ctx context.Context, a *cli.App, pool *pgxpool.Pool, eventID, consumer string) (payload []byte, former string, err error) {
	found, err := deadletter.Show(ctx, pool, a.Schema, eventID, consumer)
	switch {
	case err != nil:
		return nil, "", err
	case len(found) == 0:
		return nil, "", deadletter.ErrNoSuchEvent
	case len(found) > 1:
		return nil, "", cli.Misuse(errors.New("the event failed for several consumers: name one by --consumer"))
	case !output.Readable(found[0].Payload):
		return nil, "", cli.Misuse(errors.New("the payload is not text: name a file by --payload-file"))
	}
	before := found[0].Payload
	dir, err := os.MkdirTemp("", "millrace-")
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := "payload.txt"
	if json.Valid(before) {
		name = "payload.json"
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, before, 0o600); err != nil {
		return nil, "", err
	}
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	a.Progress.Say("")                                              // frees the terminal for the editor
	command := exec.Command("sh", "-c", editor+` "$1"`, "sh", path) //nolint:noctx // it ends when the person is done
	command.Stdin, command.Stdout, command.Stderr = a.Stdin, output.Behind(a.Stdout), output.Behind(a.Stderr)
	if err := command.Run(); err != nil {
		return nil, "", fmt.Errorf("run the editor %q: %w", editor, err)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	if !bytes.HasSuffix(before, []byte("\n")) { // editors append a line end
		after = bytes.TrimSuffix(after, []byte("\n"))
	}
	if bytes.Equal(before, after) {
		return nil, "", nil
	}
	return append([]byte{}, after...), deadletter.SHA256(before), nil
}
