package source

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/transport"
)

// Lines returns one line for each problem of the source. Problems of the file come first, in the order of its lines.
func Lines(source string, problems []settings.Problem) []string {
	var lines []string
	slices.SortStableFunc(problems, func(a, b settings.Problem) int {
		return cmp.Or(cmp.Compare(rank(a.Origin), rank(b.Origin)), cmp.Compare(a.Origin.Line, b.Origin.Line), cmp.Compare(a.Origin.Env, b.Origin.Env))
	})
	for _, p := range problems {
		where := source
		switch {
		case p.Origin.Env != "":
			where = "$" + p.Origin.Env
		case p.Origin.Line > 0:
			where = fmt.Sprintf("%s:%d", source, p.Origin.Line)
		}
		line := where + ": "
		switch {
		case p.Path != "" && strings.HasPrefix(p.Text, "["): // an element of a list
			line += p.Path
		case p.Path != "":
			line += p.Path + " "
		}
		lines = append(lines, line+p.Text)
	}
	return lines
}

func rank(o settings.Origin) int {
	switch {
	case o.Line > 0:
		return 0
	case o.Env == "":
		return 1
	}
	return 2
}

// others are the names, without prefix, of variables that other parts read: the command, devstack, and tests.
var others = []string{
	"KAFKA_HOME", "KAFKA_PASSWORD", "KAFKA_USER", "REDIS_ADDR", "REQUIRE_REAL", "ROLE", "ROLE_CONFIG", "WATCHDOG",
}

// linked matches variables that Kubernetes sets for each service of a namespace, such as MILLRACE_POSTGRES_SERVICE_HOST for the
// service millrace-postgres.
var linked = regexp.MustCompile(`^(\w+_)?((SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=|PORT=\w+://)`)

// Strangers reports unknown environment variables that were probably meant as settings: their name is close to that of a setting,
// or begins like a section. Other unknown variables may belong to someone else.
func (s *Source) Strangers(known []string, config reflect.Type, drivers []transport.Driver) []settings.Problem {
	bare := make([]string, len(known))
	for i, name := range known {
		bare[i] = strings.TrimPrefix(name, EnvPrefix+"_")
	}
	sections := slices.DeleteFunc(settings.Fields(config), func(f settings.Field) bool { return f.Kind != settings.Section })
	for _, d := range drivers {
		sections = append(sections, settings.Field{Key: d.Name})
	}
	var all []settings.Problem
	for _, entry := range s.environ {
		variable, _, _ := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(variable, EnvPrefix+"_")
		of := func(f settings.Field) bool { return strings.HasPrefix(name+"_", settings.Variable(f.Key)+"_") }
		if !ours || linked.MatchString(strings.TrimPrefix(entry, EnvPrefix+"_")) || slices.Contains(bare, name) || slices.Contains(others, name) || unread(name, drivers) ||
			strings.HasPrefix(name, "TEST_") || strings.HasPrefix(name, "BENCH_") {
			continue
		}
		problem := settings.Problem{Origin: settings.Origin{Env: variable}}
		if meant := settings.Nearest(name, bare); meant != "" {
			problem.Text = fmt.Sprintf("is unknown: did you mean $%s_%s?", EnvPrefix, meant)
		} else if strings.HasPrefix(name, "HANDLERS_") {
			problem.Text = "is of no handler: want one that the file names below \"handlers\", or all of them in $MILLRACE_HANDLERS, {name: {concurrency: 5}}"
		} else if slices.ContainsFunc(sections, of) {
			problem.Text = "is unknown: want a variable that means a setting, or another name"
		} else {
			continue
		}
		all = append(all, problem)
	}
	return all
}

// unread reports whether the variable may be a setting of a driver that is not given.
func unread(name string, drivers []transport.Driver) bool {
	for _, broker := range brokers {
		given := slices.ContainsFunc(drivers, func(d transport.Driver) bool { return d.Name == broker })
		if !given && strings.HasPrefix(name, settings.Variable(broker)+"_") {
			return true
		}
	}
	return false
}

// anchor matches YAML's error for an unquoted value that begins with "*". The value may be a password, so it must not be shown.
var anchor = regexp.MustCompile(`anchor '[^']*'|anchor "[^"]*"`)

// yamlLine is where the library says that the file is wrong: in a block where it stopped, and otherwise where that begins which has no end.
var yamlLine = regexp.MustCompile(`(?:while parsing a block \w+\) at L\d+\.C\d+-)?\bL(\d+)\.C\d+`)

// notYAML describes the error of a file that is not YAML.
func notYAML(err error) settings.Problem {
	text := strings.TrimPrefix(err.Error(), "go-yaml load error in ")
	p := settings.Problem{Text: "is no YAML: " + anchor.ReplaceAllString(text, "anchor (a value that begins with \"*\" wants quotes)")}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		p.Origin.Line, _ = strconv.Atoi(m[1]) // the pattern allows only digits
	}
	return p
}

// partPath matches the prefix of field names in the errors of Millrace's parts.
var partPath = regexp.MustCompile(`\b(?:Relay)?Config\.`)

// Within replaces that prefix in a part's error by path.
func Within(path string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(partPath.ReplaceAllString(err.Error(), path+"."))
}
