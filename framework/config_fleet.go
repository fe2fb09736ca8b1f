package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/outbox/fleet"
)

// Fleet names the databases whose outboxes "millrace relay" and RunFleet forward in one process. A service has no use for it.
type Fleet struct {
	// Databases are those of the fleet. Default: those of File alone.
	Databases []fleet.Database
	// File names a YAML file with a list "databases" of the same form, whose databases are added. It is read again every Refresh:
	// databases that are added to it or removed from it are so at run time. A file that is wrong changes nothing. Default: "", none.
	File string
	// Config is the fleet's; its relays are configured by Outbox.
	fleet.Config `without:"Relay"`
}

// There tells whether there is a fleet.
func (f Fleet) There() bool { return len(f.Databases) > 0 || f.File != "" }

// Provider returns what says which databases there are.
func (f Fleet) Provider() fleet.Provider {
	return func(context.Context) ([]fleet.Database, error) {
		all := slices.Clone(f.Databases)
		if f.File == "" {
			return all, nil
		}
		listed, err := readDatabases(f.File)
		return append(all, listed...), err
	}
}

// readDatabases reads a file of databases.
func readDatabases(path string) ([]fleet.Database, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the file that Config.Fleet.File (fleet.file) names: %w", err)
	}
	var list struct{ Databases []fleet.Database }
	var root yaml.Node
	if err := yaml.Load(content, &root); err != nil && len(bytes.TrimSpace(content)) > 0 {
		return nil, notYAML(path, err)
	}
	if root.Kind == yaml.DocumentNode {
		root = *root.Content[0]
	}
	r := settings.NewReader()
	r.Decode(&root, "", &list)
	r.Refuse(fleet.Check("Config.Databases", list.Databases), "", &list)
	if len(list.Databases) == 0 && len(r.Problems) == 0 {
		r.Problems = append(r.Problems, settings.Problem{Path: "databases", Text: "is empty: want one database or more, each with a name and a dsn"})
	}
	return list.Databases, configError(path, r.Problems)
}

// validate reports everything that is wrong with a fleet, apart from its file.
func (f Fleet) validate() error {
	return errors.Join(within("Config.Fleet", f.WithDefaults().Validate()), fleet.Check("Config.Fleet.Databases", f.Databases))
}
